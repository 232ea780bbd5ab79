#!/usr/bin/python3
# SPDX-License-Identifier: BSL-1.0
"""Parameters and buffers after training with PyTorch's DistributedDataParallel over Gloo, as a header.

usage: generate_oracles.py > oracles.hpp
       generate_oracles.py --check        (exit status 1 if oracles.hpp differs; 77 if PyTorch is missing)

Debian's package: python3-torch. tests/torch/against_python.cpp has the same modules and does the same steps.
"""
import contextlib
import pathlib
import re
import sys

here = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(here.parent / "training"))
try:
    import torch
    import torch.distributed
    from torch import nn
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.distributed.algorithms.join import Join
    from torch.nn.parallel import DistributedDataParallel

    from torch_training import run_in_group
except ImportError as missing:
    print(f"skip torch oracles: {missing}", file=sys.stdout if sys.argv[1:] == ["--check"] else sys.stderr)
    sys.exit(77)

RATE = 0.125
STEPS = 6


def pattern(shape, modulus, factor, offset, scale):
    """((factor * i + offset) mod modulus - modulus / 2) / scale over the elements i of a shape"""
    count = 1
    for extent in shape:
        count *= extent
    values = [((factor * i + offset) % modulus - modulus // 2) / scale for i in range(count)]
    return torch.tensor(values, dtype=torch.float64).reshape(shape)


class Perceptron(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x, used):
        return self.b(torch.tanh(self.a(x)))


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 3)

    def forward(self, x, used):
        y = torch.relu(self.norm(self.conv(x.reshape(-1, 1, 2, 3).repeat(1, 1, 2, 2))))
        return self.out(y.mean([2, 3]))


class Shared(nn.Module):
    """One layer, used twice and registered under two names."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = self.first
        self.out = nn.Linear(6, 3)

    def forward(self, x, used):
        return self.out(torch.tanh(self.second(torch.tanh(self.first(x)))))


class Heads(nn.Module):
    """Of three heads the first is always used, the second where `used` says so, the last never."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 5)
        self.always, self.sometimes, self.never = nn.Linear(5, 3), nn.Linear(5, 3), nn.Linear(5, 3)

    def forward(self, x, used):
        y = torch.tanh(self.body(x))
        return self.always(y) + self.sometimes(y) if used else self.always(y)


MODULES = {"perceptron": Perceptron, "convolution": Convolution, "shared": Shared, "heads": Heads}

# The words of a name say what is done.
CASES = [
    "perceptron",
    "perceptron bucket_views",
    "perceptron static_graph",
    "perceptron accumulation",
    "perceptron accumulation bucket_views",
    "perceptron twice",
    "perceptron frozen",
    "perceptron momentum",
    "perceptron adam bucket_views",
    "perceptron half",
    "perceptron uneven",
    "convolution",
    "convolution bucket_views",
    "convolution accumulation",
    "shared",
    "shared bucket_views",
    "heads unused",
    "heads unused bucket_views",
    "heads unused accumulation",
    "heads static_graph",
]


def train(rank, ranks, name):
    traits = name.split()
    module = MODULES[traits[0]]().to(torch.float32 if "half" in traits else torch.float64)
    with torch.no_grad():
        for k, w in enumerate(module.parameters()):
            w.copy_(pattern(w.shape, 19, 3, 5 * k + rank, 16))
        for k, b in enumerate(module.buffers()):
            if b.is_floating_point():
                b.fill_(k + rank + 1)
    if "frozen" in traits:
        module.a.bias.requires_grad_(False)
    ddp = DistributedDataParallel(
        module,
        bucket_cap_mb=0.0002,
        find_unused_parameters="unused" in traits,
        gradient_as_bucket_view="bucket_views" in traits,
        static_graph="static_graph" in traits,
    )
    if "half" in traits:
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    trained = [w for w in module.parameters() if w.requires_grad]
    if "adam" in traits:
        optimizer = torch.optim.Adam(trained, lr=RATE)
    else:
        optimizer = torch.optim.SGD(trained, lr=RATE, momentum=0.5 if "momentum" in traits else 0)

    def loss(step):
        shift = 11 * step + 5 * rank
        x, y = pattern((4, 6), 17, 7, shift, 8), pattern((4, 3), 5, 3, shift, 2)
        dtype = next(module.parameters()).dtype
        used = "static_graph" not in traits and (rank + step) % 2 == 0
        return ((ddp(x.to(dtype), used) - y.to(dtype)) ** 2).mean()

    uneven = Join([ddp]) if "uneven" in traits else contextlib.nullcontext()
    with uneven:
        for step in range(2 + 2 * rank if "uneven" in traits else STEPS):
            synchronised = "accumulation" not in traits or step % 3 == 2
            with contextlib.nullcontext() if synchronised else ddp.no_sync():
                total = loss(step) + loss(step + 1) if "twice" in traits else loss(step)
                total.backward()
            if synchronised:
                optimizer.step()
                optimizer.zero_grad(set_to_none=step % 2 == 0 or "unused" in traits)
    values = []
    for tensor in [*module.parameters(), *module.buffers()]:
        values += tensor.detach().double().flatten().tolist()
    return values


def train_all(rank, ranks):
    torch.set_num_threads(1)
    names = CASES if ranks == 3 else ["perceptron", "convolution", "heads unused"]
    return {name: train(rank, ranks, name) for name in names}


def header():
    yield "// SPDX-License-Identifier: BSL-1.0"
    yield "// Made by generate_oracles.py; not to be edited."
    yield "// clang-format off"
    yield "#pragma once"
    yield ""
    yield "#include <vector>"
    yield ""
    yield "namespace oracles {"
    yield ""
    yield f'inline constexpr const char* made_by = "torch {torch.__version__}";'
    yield ""
    yield "/// values[r]: rank r's parameters, then its buffers, one after the other."
    yield "struct training { const char* name; int ranks; std::vector<std::vector<double>> values; };"
    yield "inline const std::vector<training> trainings = {"
    for ranks in (2, 3):
        results = run_in_group(ranks, train_all)
        for name in results[0]:
            values = ", ".join("{" + ", ".join(f"{v:.12g}" for v in of_rank[name]) + "}" for of_rank in results)
            yield f'  {{"{name}", {ranks}, {{{values}}}}},'
    yield "};"
    yield ""
    yield "}  // namespace oracles"


NUMBER = re.compile(r"-?\d+\.?\d*(?:e[+-]\d+)?")


def is_alike(kept, made):
    """The same words, and numbers that differ in their last digits at most: processors round differently."""

    def rows(text):
        return "\n".join(line for line in text.splitlines() if "made_by" not in line)

    kept, made = rows(kept), rows(made)
    if NUMBER.sub("", kept) != NUMBER.sub("", made):
        return False
    return all(abs(float(a) - float(b)) < 1e-9 for a, b in zip(NUMBER.findall(kept), NUMBER.findall(made)))


def main():
    text = "\n".join(header()) + "\n"
    if sys.argv[1:] != ["--check"]:
        sys.stdout.write(text)
        return 0
    if is_alike((here / "oracles.hpp").read_text(), text):
        return 0
    print("oracles.hpp is not what the installed package says", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
