# SPDX-License-Identifier: BSL-1.0
"""The programs of examples/, with so little to do that each takes a second."""
import dataclasses
import gzip
import pathlib
import struct

FASHION = pathlib.Path("/usr/share/datasets/fashion-mnist")
LICENCES = pathlib.Path("/usr/share/common-licenses")
RANKS = 2


@dataclasses.dataclass
class Example:
    """`result` matches what is the same whoever starts its ranks."""
    arguments: tuple = ()
    result: str = r".+"
    starts_its_own: bool = False  # under a launcher, too: each of the launcher's ranks does all of it
    needs_a_launcher: bool = False


def examples(data):
    """By name. `data` is a folder with few images."""
    training = ("--epochs", 2, "--data", data)
    return {
        "first": Example(starts_its_own=True),
        "own_tensor": Example(result=r"y = .+"),
        "eigen_network": Example((512,), r"2 ranks: .+"),
        "character_transformer_alone": Example((10,), r"step .+", starts_its_own=True),
        "character_transformer": Example((RANKS, 10), r"step .+"),
        "moco": Example((RANKS, 1, 256), r"epoch .+%"),
        "train_fashion_mnist": Example((*training, "--precision", "double"), r"\d+ +\d\.\d{12} +\d+\.\d+ %"),
        "train_through_failures": Example((*training, "--out-of-memory", 1, "--killed", -1), r"loss \d\.\d+|from epoch \d+, image \d+"),
        "torch_alone": Example((1, 640), r"accuracy .+", starts_its_own=True),
        "torch_parallel": Example((1, 640), r"accuracy .+", needs_a_launcher=True),
    }


def make_data(folder):
    """The first images of Fashion-MNIST."""
    for part, count in (("train", 1024), ("t10k", 256)):
        for kind, dimensions, size in (("images-idx3", 3, 28 * 28), ("labels-idx1", 1, 1)):
            name = f"{part}-{kind}-ubyte.gz"
            with gzip.open(FASHION / name) as whole, gzip.open(folder / name, "wb", compresslevel=1) as some:
                magic_and_count, extents = whole.read(8), whole.read(4 * (dimensions - 1))
                some.write(magic_and_count[:4] + struct.pack(">I", count) + extents + whole.read(count * size))
