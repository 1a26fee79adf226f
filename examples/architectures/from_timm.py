"""Networks of timm, small ones of many families."""

from functools import partial
from typing import Any

import timm

from examples.architectures.catalogue import Architecture, images

SMALL: dict[str, tuple[str, int, dict[str, Any]]] = {
    "vit_tiny": ("vit_tiny_patch16_224", 64, {"img_size": 64, "depth": 4}),
    "deit_tiny": ("deit_tiny_distilled_patch16_224", 64, {"img_size": 64, "depth": 4}),
    "beit": ("beit_base_patch16_224", 64, {"img_size": 64, "depth": 3, "embed_dim": 96, "num_heads": 4}),
    "mixer": ("mixer_s32_224", 64, {"img_size": 64}),
    "resmlp": ("resmlp_12_224", 64, {"img_size": 64}),
    "gmlp": ("gmlp_ti16_224", 64, {"img_size": 64}),
    "convnextv2": ("convnextv2_atto", 64, {}),
    "efficientnet_lite": ("efficientnet_lite0", 64, {}),
    "resnet26d": ("resnet26d", 64, {}),
    "seresnext": ("seresnext26t_32x4d", 64, {}),
    "nfnet": ("nfnet_l0", 64, {}),
    "repvgg": ("repvgg_a0", 64, {}),
    "ghostnet": ("ghostnet_100", 64, {}),
    "hrnet": ("hrnet_w18_small", 64, {}),
    "dla": ("dla34", 64, {}),
    "levit": ("levit_128s", 224, {}),
    "cait": ("cait_xxs24_224", 64, {"img_size": 64, "depth": 3}),
    "coat": ("coat_lite_tiny", 64, {"img_size": 64}),
    "xcit": ("xcit_nano_12_p16_224", 64, {"depth": 3}),
    "eva02": ("eva02_tiny_patch14_224", 56, {"img_size": 56, "depth": 3}),
    "poolformer": ("poolformer_s12", 64, {}),
    "efficientformer": ("efficientformer_l1", 224, {}),
    "edgenext": ("edgenext_xx_small", 64, {}),
    "mobilevit": ("mobilevit_xxs", 64, {}),
    "fastvit": ("fastvit_t8", 64, {}),
    "swinv2": ("swinv2_tiny_window8_256", 64, {"img_size": 64, "depths": (1, 1, 2, 1)}),
    "pvt_v2": ("pvt_v2_b0", 64, {}),
    "tf_efficientnet": ("tf_efficientnet_b0", 64, {}),
    "volo": ("volo_d1_224", 64, {"img_size": 64}),
    "crossvit": ("crossvit_tiny_240", 240, {}),
    "davit": ("davit_tiny", 64, {"depths": (1, 1, 1, 1)}),
    "lcnet": ("lcnet_050", 64, {}),
    "vit_siglip": ("vit_base_patch16_siglip_224", 64, {"img_size": 64, "depth": 2, "embed_dim": 96, "num_heads": 4}),
    "features": ("resnet18", 64, {"features_only": True}),
}

ARCHITECTURES = {
    name: Architecture(partial(timm.create_model, model, **settings), images(side))
    for name, (model, side, settings) in SMALL.items()
}
