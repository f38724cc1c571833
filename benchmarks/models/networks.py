"""The networks of the table: those of public libraries, with random weights, on the smallest samples that they take.

Lines of names are grouped as the table is; `name@96` has images of 96 pixels. Networks of transformers are small: their
layers are those of the large ones.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

LABELS = 10
SIDE = 64

TIMM = {
    "convolutions": """
        convnext_atto convnext_femto_ols convnextv2_atto cs3darknet_focus_s cspresnet50 cspnext_tiny densenet121
        densenetblur121d dla34 dla46x_c dla60_res2net dpn48b efficientnet_b0 efficientnet_b0_gn efficientnet_lite0
        efficientnetv2_rw_t mobilenetv2_050 mnasnet_small mixnet_s spnasnet_100 fbnetc_100 tinynet_e
        mobilenetv4_conv_small fasternet_t0 ghostnet_050 ghostnetv2_100 ghostnetv3_050 hardcorenas_a hgnet_tiny
        hgnetv2_b0 hrnet_w18_small inception_next_atto inception_v3@96 inception_v4@96 lcnetv2_small mambaout_femto
        convformer_s18 poolformer_s12 poolformerv2_s12 fbnetv3_b lcnet_050 mobilenetv3_small_050 nfnet_l0
        eca_nfnet_l0 rdnet_tiny regnetx_002 regnety_002 repghostnet_050 repvit_m0_9 res2net50d resnest14d resnet10t
        resnet18 resnet26d seresnet18 ecaresnet26t resnetaa50 resnetblur18 resnetv2_18 resnetv2_50d_gn rexnet_100
        selecsls42b legacy_seresnet18 skresnet18 starnet_s1 tresnet_m ese_vovnet19b_dw legacy_xception xception41
        eca_resnext26ts gcresnext26ts mobileone_s0 repvgg_a0 regnetz_b16 csatv2
    """,
    "transformers": """
        beit_base_patch16_224 cait_xxs24_224 deit_tiny_patch16_224 deit_tiny_distilled_patch16_224
        deit3_small_patch16_224 eva02_tiny_patch14_224@56 vit_small_patch16_rope_224 hiera_tiny_224 sam2_hiera_tiny
        mixer_s32_224 gmlp_ti16_224 resmlp_12_224 mvitv2_tiny nest_tiny pit_ti_224 pvt_v2_b0
        swin_tiny_patch4_window7_224 swinv2_cr_tiny_224 swinv2_tiny_window8_256 tnt_s_patch16_224 twins_svt_small
        twins_pcpvt_small vit_tiny_patch16_224 test_vit_relpos samvit_base_patch16_224 volo_d1_224
        xcit_nano_12_p16_224 naflexvit_base_patch16_gap davit_tiny focalnet_tiny_srf gcvit_xxtiny crossvit_9_240@240
        sequencer2d_s
    """,
    "mixtures": """
        botnet26t_256 eca_halonext26ts@256 lambda_resnet26t coat_lite_tiny coat_tiny convit_tiny cpubone_b0_bfrobust
        edgenext_xx_small efficientformer_l1@224 efficientformerv2_s0 mobilenetv4_hybrid_medium efficientvim_m1
        efficientvit_b0 efficientvit_m0 fastvit_t8 iformer_t levit_128s lowformer_b0 coatnet_nano_rw_224
        maxvit_tiny_tf_224 maxxvit_rmlp_nano_rw_256 caformer_s18 mobilevit_xxs mobilevitv2_050 nextvit_small
        shvit_s1 swiftformer_xs tiny_vit_5m_224 visformer_tiny vit_small_r26_s32_224 vitamin_small_224
    """,
}
TORCHVISION = {
    "images": """
        alexnet convnext_tiny convnext_small densenet121 densenet169 efficientnet_b0 efficientnet_b1
        efficientnet_v2_s googlenet inception_v3@299 maxvit_t@224 mnasnet0_5 mnasnet1_0 mobilenet_v2
        mobilenet_v3_small mobilenet_v3_large regnet_x_400mf regnet_y_400mf resnet18 resnet34 resnet50 resnet101
        resnext50_32x4d wide_resnet50_2 shufflenet_v2_x0_5 shufflenet_v2_x1_0 squeezenet1_0 squeezenet1_1 swin_t
        swin_v2_t vgg11_bn@32 vit_b_16
    """,
    "videos": "mc3_18 r2plus1d_18 r3d_18 s3d@96 swin3d_t mvit_v2_s@224",
    "masks": "deeplabv3_mobilenet_v3_large deeplabv3_resnet50 fcn_resnet50 lraspp_mobilenet_v3_large",
}
MASKS = """
    Unet:resnet18 Unet:mobilenet_v2 Unet:efficientnet-b0 Unet:densenet121 Unet:vgg11_bn Unet:mit_b0
    Unet:resnext50_32x4d UnetPlusPlus:resnet18 MAnet:resnet18 Linknet:resnet18 FPN:resnet18 PSPNet:resnet18
    PAN:resnet18@128 DeepLabV3:resnet18 DeepLabV3Plus:resnet18 UPerNet:resnet18 Segformer:resnet18
    DPT:tu-vit_tiny_patch16_224
"""
SIZES = {
    "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64, "num_labels": LABELS,
}  # fmt: skip
TEXT = SIZES | {
    "vocab_size": 64, "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
IMAGE = SIZES | {"image_size": 32, "patch_size": 8}
STAGES = {"depths": [1, 1, 2, 1], "num_labels": LABELS}
WINDOWS = {"head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 8}
WAVES = TEXT | {
    "conv_dim": [16, 16], "conv_stride": [5, 2], "conv_kernel": [10, 3], "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
}  # fmt: skip
TOKENS_SHAPE, IMAGE_SHAPE, WAVE_SHAPE = (12,), (3, 32, 32), (800,)
UNTIED = {"tie_word_embeddings": False}
HUGGING_FACE: dict[str, dict[str, dict[str, Any]]] = {
    "next tokens": {
        "GPT2LMHeadModel": TEXT,
        "GPT2LMHeadModel:untied": TEXT | UNTIED,
        "GPTNeoForCausalLM": TEXT | UNTIED | {"attention_types": [[["global", "local"], 2]], "num_layers": 4,
                                              "num_heads": 4, "window_size": 4},
        "GPTNeoXForCausalLM": TEXT,
        "OPTForCausalLM": TEXT | UNTIED | {"ffn_dim": 64, "word_embed_proj_dim": 32},
        "BloomForCausalLM": TEXT | UNTIED,
        "FalconForCausalLM": TEXT | UNTIED,
        "LlamaForCausalLM": TEXT,
        "MistralForCausalLM": TEXT | {"sliding_window": 4},
        "Qwen2ForCausalLM": TEXT,
        "Qwen3ForCausalLM": TEXT,
        "GemmaForCausalLM": TEXT | UNTIED | {"head_dim": 8},
        "Gemma2ForCausalLM": TEXT | UNTIED | WINDOWS,
        "Gemma3ForCausalLM": TEXT | UNTIED | WINDOWS,
        "Phi3ForCausalLM": TEXT,
        "SmolLM3ForCausalLM": TEXT | UNTIED,
        "MixtralForCausalLM": TEXT | {"num_local_experts": 4},
        "MambaForCausalLM": TEXT | UNTIED | {"state_size": 4},
    },
    "texts": {
        "GPT2ForSequenceClassification": TEXT,
        "LlamaForSequenceClassification": TEXT,
        "BertForSequenceClassification": TEXT,
        "DistilBertForSequenceClassification": TEXT | {"dim": 32, "n_layers": 4, "n_heads": 4, "hidden_dim": 64},
        "RobertaForSequenceClassification": TEXT,
        "AlbertForSequenceClassification": TEXT | {"embedding_size": 16},
        "ElectraForSequenceClassification": TEXT | {"embedding_size": 32},
        "DebertaV2ForSequenceClassification": TEXT | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
        "FNetForSequenceClassification": TEXT,
        "MPNetForSequenceClassification": TEXT,
        "ModernBertForSequenceClassification": TEXT | {"local_attention": 4},
    },
    "images": {
        "ViTForImageClassification": IMAGE,
        "DeiTForImageClassification": IMAGE,
        "BeitForImageClassification": IMAGE,
        "Dinov2ForImageClassification": IMAGE,
        "SwinForImageClassification": STAGES | {"embed_dim": 16, "num_heads": [2, 2, 4, 4], "window_size": 2,
                                                "patch_size": 2, "image_size": 32},
        "ConvNextForImageClassification": STAGES | {"hidden_sizes": [16, 16, 32, 32]},
        "PoolFormerForImageClassification": STAGES | {"hidden_sizes": [16, 16, 32, 32]},
        "ResNetForImageClassification": STAGES | {"hidden_sizes": [16, 32, 32, 64], "embedding_size": 16},
        "MobileNetV2ForImageClassification": {"num_labels": LABELS},
        "MobileViTForImageClassification": {"num_labels": LABELS, "image_size": 32},
        "SegformerForSemanticSegmentation": {"num_labels": LABELS},
    },
    "sounds": {"Wav2Vec2ForSequenceClassification": WAVES, "HubertForSequenceClassification": WAVES},
}  # fmt: skip
BLOCKS = """
    BertForSequenceClassification RobertaForSequenceClassification ElectraForSequenceClassification
    GPT2LMHeadModel GPTNeoForCausalLM OPTForCausalLM LlamaForCausalLM MistralForCausalLM Qwen2ForCausalLM
    Gemma3ForCausalLM Phi3ForCausalLM ViTForImageClassification DeiTForImageClassification BeitForImageClassification
    Dinov2ForImageClassification
"""
"""Networks of transformers of which the blocks are taken, behind an embedding and in front of a head, as theses do."""


@dataclass(frozen=True)
class Known:
    """A network of the table.

    Attributes:
        library, family, name: what it is called, and what it is counted among.
        shape, tokens: of a sample.
        make: makes it, and imports what it needs.
    """

    library: str
    family: str
    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    tokens: bool = False


def networks() -> Iterator[Known]:
    """Yield all networks, library by library."""
    for family, names in TIMM.items():
        for name, side in _sides(names):
            yield Known("timm", family, name, lambda name=name, side=side: _timm(name, side), (3, side, side))
    for family, names in TORCHVISION.items():
        for name, side in _sides(names):
            shape = (3, 16, side, side) if family == "videos" else (3, side, side)
            yield Known("torchvision", family, name, lambda n=name, s=side, f=family: _torchvision(n, s, f), shape)
    for name, side in _sides(MASKS):
        yield Known("segmentation_models_pytorch", "masks", name, lambda name=name: _masks(name), (3, side, side))
    for family, configs in HUGGING_FACE.items():
        for name, sizes in configs.items():
            shape = {"images": IMAGE_SHAPE, "sounds": WAVE_SHAPE}.get(family, TOKENS_SHAPE)
            make = lambda name=name, sizes=sizes: _transformers(name, sizes)  # noqa: E731
            yield Known("transformers", family, name, make, shape, tokens=shape == TOKENS_SHAPE)
            if name in BLOCKS.split():
                of_blocks = lambda make=make: _of_blocks(make())  # noqa: E731
                yield Known("transformers", "from blocks", name, of_blocks, shape, tokens=shape == TOKENS_SHAPE)
    yield from _sounds()
    yield from _pairs_of_text_and_image()
    yield from _graphs()


def _sides(names: str) -> Iterator[tuple[str, int]]:
    for entry in names.split():
        name, _, side = entry.partition("@")
        yield name, int(side or SIDE)


def _timm(name: str, side: int) -> nn.Module:
    import timm

    try:
        return timm.create_model(name, num_classes=LABELS, img_size=side)
    except TypeError:  # it takes images of any size
        return timm.create_model(name, num_classes=LABELS)


def _torchvision(name: str, side: int, family: str) -> nn.Module:
    import torchvision

    more: dict[str, Any] = {"image_size": side} if name.startswith("vit_") else {}
    if family == "masks":
        more["weights_backbone"] = None
    return torchvision.models.get_model(name, weights=None, num_classes=LABELS, **more)


def _masks(name: str) -> nn.Module:
    import segmentation_models_pytorch

    kind, encoder = name.split(":")
    more = {"dynamic_img_size": True} if kind == "DPT" else {}
    make = getattr(segmentation_models_pytorch, kind)
    return make(encoder_name=encoder, encoder_weights=None, classes=LABELS, **more)


def _transformers(name: str, sizes: dict[str, Any]) -> nn.Module:
    import transformers

    kind = getattr(transformers, name.partition(":")[0])
    return kind(kind.config_class(**sizes))


class Called(nn.Module):
    """Calls a module of transformers with a tensor, and gives the first tensor that comes out."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        out = self.module(x)
        return out if isinstance(out, Tensor) else out[0]


class Turned(nn.Module):
    """A block that is given the angles of positions."""

    def __init__(self, block: nn.Module, angles: nn.Module, **more: Any) -> None:
        super().__init__()
        self.block, self.angles, self.more = block, angles, more

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1], device=x.device)[None]
        out = self.block(x, position_embeddings=self.angles(x, positions, **self.more))
        return out if isinstance(out, Tensor) else out[0]


class First(nn.Module):
    """The first position of a sequence."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0]


class Embedded(nn.Module):
    """Tokens and their positions as vectors."""

    def __init__(self, tokens: nn.Module, positions: nn.Module, offset: int = 0) -> None:
        super().__init__()
        self.tokens, self.positions, self.offset = tokens, positions, offset

    def forward(self, x: Tensor) -> Tensor:
        return self.tokens(x) + self.positions.weight[self.offset : self.offset + x.shape[1]]


def _of_blocks(whole: Any) -> nn.Sequential:
    """Put the blocks of a network of transformers between its embedding and a head, without masks."""
    base, width = whole.base_model, SIZES["hidden_size"]
    if hasattr(base, "embeddings"):
        blocks = base.encoder.layer if hasattr(base, "encoder") else base.layers
        norm = getattr(base, "layernorm", nn.Identity())
        return nn.Sequential(
            Called(base.embeddings), *map(Called, blocks), nn.Sequential(norm, First(), nn.Linear(width, LABELS))
        )
    base = getattr(base, "decoder", base)
    names = dict(base.named_children())
    (blocks,) = (child for child in names.values() if isinstance(child, nn.ModuleList))
    norm = next(names[name] for name in ("norm", "ln_f", "final_layer_norm") if name in names)
    embedding, positions = base.get_input_embeddings(), names.get("wpe", names.get("embed_positions"))
    if positions is not None:
        embedding = Embedded(embedding, positions, getattr(positions, "offset", 0))
    angles = names.get("rotary_emb")
    called: list[nn.Module] = []
    for number, block in enumerate(blocks):
        kind = {"layer_type": whole.config.layer_types[number]} if hasattr(angles, "layer_types") else {}
        called.append(Called(block) if angles is None else Turned(block, angles, **kind))
    return nn.Sequential(embedding, *called, nn.Sequential(norm, nn.Linear(width, TEXT["vocab_size"])))


def _sounds() -> Iterator[Known]:
    def models() -> Any:
        import torchaudio

        return torchaudio.models

    library, family = "torchaudio", "sounds"
    yield Known(library, family, "Wav2Letter", lambda: models().Wav2Letter(LABELS, "mfcc", 16), (16, 100))
    yield Known(library, family, "DeepSpeech", lambda: models().DeepSpeech(16, 32, LABELS), (1, 20, 16))
    yield Known(
        library,
        family,
        "ConvTasNet",
        lambda: models().ConvTasNet(
            2, enc_num_feats=32, msk_num_feats=16, msk_num_hidden_feats=32, msk_num_layers=3, msk_num_stacks=2
        ),
        (1, 400),
    )
    yield Known(
        library, family, "HDemucs", lambda: models().HDemucs(["a", "b"], channels=8, depth=4, nfft=1024), (2, 8192)
    )
    yield Known(library, family, "Conformer", lambda: models().Conformer(16, 4, 32, 2, 3), (20, 16))
    yield Known(
        library,
        family,
        "wav2vec2",
        lambda: models().wav2vec2_model(
            "group_norm", [(16, 10, 5), (16, 3, 2)], False, 32, 0.1, 16, 4, 4, 4, 0.1, 64, 0.1, 0.1, False, 0.1, LABELS
        ),
        WAVE_SHAPE,
    )


def _pairs_of_text_and_image() -> Iterator[Known]:
    def parts() -> Any:
        import open_clip.modified_resnet
        import open_clip.timm_model
        import open_clip.transformer

        return open_clip

    library = "open_clip"
    yield Known(
        library,
        "images",
        "VisionTransformer",
        lambda: parts().transformer.VisionTransformer(
            image_size=32, patch_size=8, width=32, layers=4, heads=4, mlp_ratio=2, output_dim=LABELS
        ),
        IMAGE_SHAPE,
    )
    yield Known(
        library,
        "images",
        "ModifiedResNet",
        lambda: parts().modified_resnet.ModifiedResNet(
            [1, 1, 2, 1], output_dim=LABELS, heads=4, image_size=64, width=16
        ),
        (3, 64, 64),
    )
    yield Known(
        library,
        "images",
        "TimmModel",
        lambda: parts().timm_model.TimmModel("resnet18", embed_dim=LABELS, pool="avg", proj="linear", pretrained=False),
        (3, 64, 64),
    )
    yield Known(
        library,
        "texts",
        "TextTransformer",
        lambda: parts().transformer.TextTransformer(
            context_length=12, vocab_size=64, width=32, heads=4, layers=4, output_dim=LABELS
        ),
        TOKENS_SHAPE,
        tokens=True,
    )
    yield Known(
        library, "pairs", "ViT-S-32", lambda: parts().create_model("ViT-S-32", force_image_size=64), (3, 64, 64)
    )


class OnGraph(nn.Module):
    """A network of torch_geometric for signals on the nodes of a graph that stays, such as a ring of sensors."""

    def __init__(self, network: nn.Module, nodes: int) -> None:
        super().__init__()
        self.network = network
        here = torch.arange(nodes)
        there = (here + 1) % nodes
        self.register_buffer("edges", torch.stack([torch.cat([here, there]), torch.cat([there, here])]))

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x, self.edges).mean(dim=1)


def _graphs() -> Iterator[Known]:
    def make(name: str, **more: Any) -> nn.Module:
        from torch_geometric.nn import models

        return OnGraph(getattr(models, name)(8, 16, 4, LABELS, **more), 12)

    for name in ("GCN", "GraphSAGE", "GIN", "EdgeCNN"):
        yield Known("torch_geometric", "signals on a graph", name, lambda name=name: make(name), (12, 8))
