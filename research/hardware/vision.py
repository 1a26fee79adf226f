"""The layer shapes of image networks, in the form that the cost models of accelerators take.

Layers are grouped into blocks, and a scheduler may switch to another batch between two blocks. The multiply-adds of one
image equal those published in the papers and by model zoos (checked by tests).
"""

from collections.abc import Sequence

from research.hardware.npu import Product

Block = tuple[Product, ...]


def convolution(inside: int, outside: int, side: int, kernel: int = 3, across: int = 0) -> Product:
    """Return a convolution with `side` x `side` outputs and a `kernel` x `across` kernel (square if `across` is 0)."""
    return Product(inside * kernel * (across or kernel), outside, side * side)


def dense(inside: int, outside: int, rows: int = 1) -> Product:
    """Return a fully connected layer that is applied to `rows` vectors of each item."""
    return Product(inside, outside, rows)


def residual(depths: Sequence[int]) -> list[Block]:
    """Return a residual network of bottleneck blocks for 224 x 224 images (He et al. 2016, table 1).

    `depths` is the number of blocks for each feature map size: 3, 4, 6, 3 is ResNet-50.
    """
    blocks: list[Block] = [(convolution(3, 64, 112, 7),)]
    inside = 64
    for width, count, side in zip((64, 128, 256, 512), depths, (56, 28, 14, 7), strict=True):
        for block in range(count):
            layers = [convolution(inside, width, side, 1), convolution(width, width, side)]
            layers.append(convolution(width, 4 * width, side, 1))
            if block == 0:
                layers.append(convolution(inside, 4 * width, side, 1))
            blocks.append(tuple(layers))
            inside = 4 * width
    return [*blocks, (dense(2048, 1000),)]


def plain(depths: Sequence[int]) -> list[Block]:
    """Return a VGG network for 224 x 224 images (Simonyan and Zisserman 2015), one block for each feature map size.

    `depths` is the number of convolutions in each block: 2, 2, 3, 3, 3 is VGG-16.
    """
    blocks, inside = [], 3
    for width, count, side in zip((64, 128, 256, 512, 512), depths, (224, 112, 56, 28, 14), strict=True):
        layers = []
        for _ in range(count):
            layers.append(convolution(inside, width, side))
            inside = width
        blocks.append(tuple(layers))
    return [*blocks, (dense(25_088, 4096), dense(4096, 4096), dense(4096, 1000))]


def inception_v4() -> list[Block]:
    """Return Inception-v4 for 299 x 299 images (Szegedy et al. 2017, figures 3 to 9)."""
    c = convolution
    stem = (
        *(c(3, 32, 149), c(32, 32, 147), c(32, 64, 147), c(64, 96, 73)),
        *(c(160, 64, 73, 1), c(64, 96, 71)),
        *(c(160, 64, 73, 1), c(64, 64, 73, 7, 1), c(64, 64, 73, 1, 7), c(64, 96, 71), c(192, 192, 35)),
    )
    a = (
        *(c(384, 96, 35, 1), c(384, 96, 35, 1), c(384, 64, 35, 1), c(64, 96, 35)),
        *(c(384, 64, 35, 1), c(64, 96, 35), c(96, 96, 35)),
    )
    to_b = (c(384, 384, 17), c(384, 192, 35, 1), c(192, 224, 35), c(224, 256, 17))
    b = (
        *(c(1024, 128, 17, 1), c(1024, 384, 17, 1)),
        *(c(1024, 192, 17, 1), c(192, 224, 17, 1, 7), c(224, 256, 17, 7, 1)),
        *(c(1024, 192, 17, 1), c(192, 192, 17, 1, 7), c(192, 224, 17, 7, 1)),
        *(c(224, 224, 17, 1, 7), c(224, 256, 17, 7, 1)),
    )
    to_c = (
        *(c(1024, 192, 17, 1), c(192, 192, 8)),
        *(c(1024, 256, 17, 1), c(256, 256, 17, 1, 7), c(256, 320, 17, 7, 1), c(320, 320, 8)),
    )
    last = (
        *(c(1536, 256, 8, 1), c(1536, 256, 8, 1)),
        *(c(1536, 384, 8, 1), c(384, 256, 8, 1, 3), c(384, 256, 8, 3, 1)),
        *(c(1536, 384, 8, 1), c(384, 448, 8, 1, 3), c(448, 512, 8, 3, 1), c(512, 256, 8, 1, 3), c(512, 256, 8, 3, 1)),
    )
    return [stem, *(a,) * 4, to_b, *(b,) * 7, to_c, *(last,) * 3, (dense(1536, 1000),)]
