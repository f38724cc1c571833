"""Speech Commands: the folders of its archive, and what a log-mel image shows."""

import math
import wave
from pathlib import Path

import numpy as np
import pytest
import torch
from well_formed import assert_normalised_by_mean_and_std

from sfl_sim.data.loading import load
from sfl_sim.data.speech import N_MELS, SAMPLE_RATE_HZ, log_mel, mel_filters
from sfl_sim.errors import ScenarioError

HZ_OF_BAND = 700 * (10 ** (np.arange(1, N_MELS + 1) * math.log10(1 + 8000 / 700) / (N_MELS + 1)) - 1)
TIME_S = torch.arange(SAMPLE_RATE_HZ) / SAMPLE_RATE_HZ


def tone(frequency_hz, amplitude=0.5):
    return amplitude * torch.sin(2 * math.pi * frequency_hz * TIME_S)


def save(file, waveform, channels=1):
    file.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(file), "wb") as clip:
        clip.setnchannels(channels)
        clip.setsampwidth(2)
        clip.setframerate(SAMPLE_RATE_HZ)
        clip.writeframes((waveform * 2**15).to(torch.int16).numpy().tobytes())


@pytest.fixture
def folder(tmp_path):
    """Two words by three speakers, in the layout of the published archive."""
    folder = tmp_path / "SpeechCommands" / "speech_commands_v0.02"
    for word, frequency_hz in (("yes", 400), ("no", 3000)):
        for speaker in ("0a7c2a8d", "b5cf6ea8", "e9323bd9"):
            save(folder / word / f"{speaker}_nohash_0.wav", tone(frequency_hz))
    save(folder / "yes" / "0a7c2a8d_nohash_1.wav", tone(400)[:9000])
    save(folder / "_background_noise_" / "pink_noise.wav", tone(50))
    (folder / "validation_list.txt").write_text("no/b5cf6ea8_nohash_0.wav\nyes/b5cf6ea8_nohash_0.wav\n")
    (folder / "testing_list.txt").write_text("no/e9323bd9_nohash_0.wav\nyes/e9323bd9_nohash_0.wav\n")
    return folder


def test_words_are_labels_and_speakers_owners_in_the_official_split(folder, tmp_path):
    data = load("speech_commands", root=tmp_path, download=False)
    assert data.label_names == ("no", "yes")
    assert data.x_train.shape == (3, 1, 32, 32)
    assert data.x_train.dtype is torch.uint8
    assert data.y_train.tolist() == [0, 1, 1]
    assert data.y_test.tolist() == [0, 1]
    assert data.owner_names == ("0a7c2a8d",)
    assert data.owners.tolist() == [0, 0, 0]
    assert data.test_owners is None  # whoever is tested has not trained
    assert_normalised_by_mean_and_std(data)


def test_a_short_clip_is_followed_by_silence(folder, tmp_path):
    short = load("speech_commands", root=tmp_path, download=False).x_train[2, 0]
    assert short[:, :15].max() == 255
    assert short[:, 20:].max() == 0


@pytest.mark.parametrize("band", [2, 10, 20, 31])
def test_a_tone_lights_up_the_band_of_its_pitch(band):
    image = log_mel(tone(HZ_OF_BAND[band])[None])[0, 0]
    assert image.shape == (32, 32)
    assert (image[:, 2:-2].argmax(dim=0) == band).all()
    assert image[band, 2:-2].min() > 250


def test_levels_are_decibels_below_the_loudest_point():
    # A hundredth of the amplitude is 40 dB less.
    both = tone(HZ_OF_BAND[10], 0.5) + tone(HZ_OF_BAND[24], 0.005)
    image = log_mel(both[None])[0, 0].float()
    quiet_db = (image[24, 5:-5].mean() / 255 - 1) * 80
    assert quiet_db == pytest.approx(-40, abs=1.5)


def test_loudness_does_not_matter_and_silence_is_dark():
    assert torch.equal(log_mel(tone(440, 0.5)[None]), log_mel(tone(440, 0.25)[None]))
    assert log_mel(torch.zeros(1, SAMPLE_RATE_HZ)).max() == 0


def test_mel_filters_are_triangles_that_add_up_to_one_between_their_centres():
    filters = mel_filters()
    assert filters.shape == (32, 513)
    hz = np.linspace(0, 8000, 513)
    between = (hz >= HZ_OF_BAND[0]) & (hz <= HZ_OF_BAND[-1])
    torch.testing.assert_close(filters.sum(dim=0)[between], torch.ones(int(between.sum())))
    assert (filters.max(dim=1).values > 0.8).all()


@pytest.mark.parametrize(
    ("file", "spoil"),
    [
        ("yes/0a7c2a8d_nohash_2.wav", lambda clip: save(clip, tone(400), channels=2)),
        ("yes/0a7c2a8d_nohash_1.wav", lambda clip: clip.write_bytes(clip.read_bytes()[:-1])),
        ("testing_list.txt", Path.unlink),
    ],
)
def test_a_file_that_cannot_be_used_is_named(folder, tmp_path, file, spoil):
    spoil(folder / file)
    with pytest.raises(ScenarioError, match=file.rpartition("/")[2]) as failure:
        load("speech_commands", root=tmp_path, download=False)
    assert failure.value.key == "data.name"


def test_a_missing_set_says_what_to_download(tmp_path):
    with pytest.raises(ScenarioError, match=r"http://download\.tensorflow\.org.*v0\.02\.tar\.gz"):
        load("speech_commands", root=tmp_path, download=False)
