"""Speech Commands of Google as log-mel images."""

import wave
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sfl_sim.data.cache import cached
from sfl_sim.data.dataset import Dataset, measured
from sfl_sim.data.download import Remote, data_root, fetch_folder
from sfl_sim.errors import ScenarioError

SAMPLE_RATE_HZ = 16_000
CLIP_SAMPLES = 16_000
"""Samples in one second, to which shorter clips are padded with silence and longer ones are cut."""
N_FFT = 1024
HOP = 512
N_MELS = 32
RANGE_DB = 80
"""Range of the images: a clip's loudest point is 255, and all that lies so far or farther below it is 0."""
BATCH = 1000
URL = "http://download.tensorflow.org/data/speech_commands_v0.02.tar.gz"
SHA256 = "af14739ee7dc311471de98f5f9d2c9191b18aedfe957f4a6ff791c709868ff58"


def speech_commands(root: str | Path | None = None, download: bool = True) -> Dataset:
    """Speech Commands v2 (Warden 2018): 84,843 + 11,005 spoken words, 35 labels, as log-mel images of 32 x 32.

    The split is the official one, by speaker; the validation clips are in neither part. Owners are the speakers.
    """
    folder = data_root(root) / "SpeechCommands" / "speech_commands_v0.02"  # where torchaudio has it

    def read() -> Dataset:
        archive = Remote((URL,), folder.with_name("speech_commands_v0.02.tar.gz"), f"sha256:{SHA256}")
        fetch_folder("speech_commands", folder, archive, download)
        return _read(folder)

    return cached(data_root(root), "speech_commands", {}, [folder], read)


def _read(folder: Path) -> Dataset:
    try:
        lists = [(folder / name).read_text().split() for name in ("validation_list.txt", "testing_list.txt")]
    except OSError as error:
        raise ScenarioError(f"{folder} is not Speech Commands: {error}", key="data.name") from error
    clips = sorted(path.relative_to(folder).as_posix() for path in folder.glob("[!_]*/*_nohash_*.wav"))
    validation, testing = map(set, lists)
    held_out = validation | testing
    train = [clip for clip in clips if clip not in held_out]
    test = [clip for clip in clips if clip in testing]
    if not (train and test):
        problem = f"{folder} is not Speech Commands: clips for training or tests are missing"
        raise ScenarioError(problem, key="data.name")
    words = sorted({clip.split("/")[0] for clip in clips})
    y_train, y_test = (torch.tensor([words.index(clip.split("/")[0]) for clip in part]) for part in (train, test))
    speakers, owners = np.unique([clip.split("/")[1].split("_")[0] for clip in train], return_inverse=True)
    data = Dataset(
        "speech_commands", _images(folder, train), y_train, _images(folder, test), y_test, tuple(words),
        owners=torch.from_numpy(owners), owner_names=tuple(speakers.tolist()),
    )  # fmt: skip
    return measured(data)


def _images(folder: Path, clips: Sequence[str]) -> Tensor:
    batches = (clips[start : start + BATCH] for start in range(0, len(clips), BATCH))
    return torch.cat([log_mel(torch.stack([_waveform(folder / clip) for clip in batch])) for batch in batches])


def _waveform(file: Path) -> Tensor:
    """Read a clip as float32 (CLIP_SAMPLES,) in [-1, 1)."""
    try:
        with wave.open(str(file)) as clip:
            if (clip.getnchannels(), clip.getsampwidth(), clip.getframerate()) != (1, 2, SAMPLE_RATE_HZ):
                raise wave.Error(f"not 16-bit mono at {SAMPLE_RATE_HZ} Hz")
            pcm = np.frombuffer(clip.readframes(CLIP_SAMPLES), dtype="<i2")
    except (wave.Error, EOFError, OSError, ValueError) as error:
        raise ScenarioError(f"cannot read the clip {file}: {error}", key="data.name") from error
    whole = np.zeros(CLIP_SAMPLES, dtype=np.float32)
    whole[: len(pcm)] = pcm / np.float32(2**15)
    return torch.from_numpy(whole)


def log_mel(waveforms: Tensor) -> Tensor:
    """Convert floating waveforms (N, CLIP_SAMPLES) to log-mel images, uint8 (N, 1, N_MELS, frames), low pitch first.

    The steps are: a periodic Hann window of `N_FFT` samples, moved by `HOP`, centred with zeros beyond the ends; power;
    `mel_filters`; decibels below the clip's loudest point, cut at `RANGE_DB`, on a linear scale 0 .. 255.
    """
    window = torch.hann_window(N_FFT)
    spectrum = torch.stft(waveforms, N_FFT, HOP, window=window, center=True, pad_mode="constant", return_complex=True)
    power = mel_filters() @ spectrum.abs().square()
    loudest = power.amax(dim=(1, 2), keepdim=True).clamp_min(torch.finfo(power.dtype).tiny)
    level_db = 10 * (power / loudest).clamp_min(10 ** (-RANGE_DB / 10)).log10()
    return (255 * (1 + level_db / RANGE_DB)).round().to(torch.uint8).unsqueeze(1)


def mel_filters() -> Tensor:
    """Make filters (N_MELS, N_FFT / 2 + 1): triangles of height 1, evenly spaced on HTK's mel scale up to Nyquist."""
    frequency_hz = np.linspace(0, SAMPLE_RATE_HZ / 2, N_FFT // 2 + 1)
    corners_hz = _hz(np.linspace(0, _mel(SAMPLE_RATE_HZ / 2), N_MELS + 2))
    left, centre, right = corners_hz[:-2, None], corners_hz[1:-1, None], corners_hz[2:, None]
    rising, falling = (frequency_hz - left) / (centre - left), (right - frequency_hz) / (right - centre)
    return torch.from_numpy(np.minimum(rising, falling).clip(0).astype(np.float32))


def _mel(frequency_hz: float) -> float:
    return float(2595 * np.log10(1 + frequency_hz / 700))


def _hz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    return 700 * (10 ** (mel / 2595) - 1)
