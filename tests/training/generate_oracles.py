#!/usr/bin/python3
# SPDX-License-Identifier: BSL-1.0
"""What PyTorch and scikit-learn say, as a header that the tests compare with.

usage: generate_oracles.py > oracles.hpp
       generate_oracles.py --check        (exit status 1 if oracles.hpp differs; 77 if a package is missing)

Debian's packages: python3-torch, python3-sklearn.
"""
import os
import random
import sys

try:
    import sklearn
    import sklearn.metrics
    import torch
    import torch.distributed
    from torch.utils.data import DistributedSampler

    import torch_training
except ImportError as missing:
    print(f"skip oracles: {missing}", file=sys.stdout if sys.argv[1:] == ["--check"] else sys.stderr)
    sys.exit(77)


def braces(values):
    return "{" + ", ".join(str(v) for v in values) + "}"


def permutations():
    for count, seed in [(0, 0), (1, 5), (2, 1), (10, 0), (17, 7), (40, 2**32 + 3), (25, 2**63 - 1), (31, 4294967295)]:
        generator = torch.Generator()
        generator.manual_seed(seed)
        order = torch.randperm(count, generator=generator).tolist()
        yield f"{{{count}, {seed}u, {braces(order)}}}"


def permutation_sums():
    """Large ones by their sum of index * value, modulo 2^64."""
    for count, seed in [(60000, 1), (1000003, 99)]:
        generator = torch.Generator()
        generator.manual_seed(seed)
        order = torch.randperm(count, generator=generator).tolist()
        yield f"{{{count}, {seed}u, {sum(i * v for i, v in enumerate(order)) % 2**64}u}}"


def samplers():
    for count in [0, 1, 4, 10, 23]:
        for ranks in [1, 2, 4, 9]:
            for shuffle, drop_last in [(False, False), (False, True), (True, False), (True, True)]:
                if count == 0 and not drop_last:
                    continue  # torch divides by zero
                orders = []
                for rank in range(ranks):
                    sampler = DistributedSampler(range(count), ranks, rank, shuffle=shuffle, seed=3, drop_last=drop_last)
                    sampler.set_epoch(2)
                    orders.append(braces(sampler))
                yield f"{{{count}, {str(shuffle).lower()}, {str(drop_last).lower()}, {braces(orders)}}}"


def buckets():
    types = {torch.float16: "float16", torch.float32: "float32", torch.float64: "float64"}
    chance = random.Random(4)
    for case in range(40):
        tensors = []
        for _ in range(chance.randint(1, 20)):
            dtype = torch.float32 if case % 2 == 0 else chance.choice(list(types))
            tensors.append(torch.empty(chance.choice([0, 1, 10, 100, 300]) + chance.randint(0, 50), dtype=dtype))
        limits = chance.choice([[400], [1024], [100, 2000], [1, 500, 1000], [1 << 40]])
        order = list(range(len(tensors)))
        assign = torch.distributed._compute_bucket_assignment_by_size
        assigned, _ = assign(tensors, limits, [False] * len(tensors))
        chance.shuffle(order)
        in_order, _ = assign([tensors[k] for k in order], limits, [False] * len(tensors), order)
        sizes = ["{ddpp::dtype::%s, %d}" % (types[t.dtype], t.numel() * t.element_size()) for t in tensors]
        layouts = [braces(braces(b) for b in layout) for layout in (assigned, in_order)]
        yield f"{{{braces(sizes)}, {braces(limits)}, {layouts[0]}, {braces(order)}, {layouts[1]}}}"


def precisions():
    chance = random.Random(5)
    for count in [1, 2, 10, 50]:
        for levels in [3, 10**6]:  # with and without ties
            labels = [chance.randint(0, 1) for _ in range(count)]
            labels[chance.randrange(count)] = 1
            scores = [chance.randint(0, levels) / levels for _ in range(count)]
            average = sklearn.metrics.average_precision_score(labels, scores)
            precision, recall, threshold = sklearn.metrics.precision_recall_curve(labels, scores)
            columns = [scores, labels, precision.tolist(), recall.tolist(), threshold.tolist()]
            yield f"{{{average!r}, {', '.join(braces(c) for c in columns)}}}"


def areas():
    chance = random.Random(6)
    for count in [2, 3, 10, 60]:
        for levels in [3, 10**6]:  # with and without ties
            labels = [0, 1] + [chance.randint(0, 1) for _ in range(count - 2)]
            scores = [chance.randint(0, levels) / levels for _ in range(count)]
            area = sklearn.metrics.roc_auc_score(labels, scores)
            false, true, _ = sklearn.metrics.roc_curve(labels, scores, drop_intermediate=False)
            yield f"{{{float(area)!r}, {', '.join(braces(c) for c in [scores, labels, false.tolist(), true.tolist()])}}}"


def confusions():
    chance = random.Random(7)
    for classes, count in [(1, 3), (2, 20), (5, 100)]:
        labels = [chance.randrange(classes) for _ in range(count)]
        predicted = [chance.randrange(classes) for _ in range(count)]
        table = sklearn.metrics.confusion_matrix(labels, predicted, labels=range(classes)).ravel().tolist()
        yield f"{{{classes}, {', '.join(braces(c) for c in [labels, predicted, table])}}}"


def trainings():
    for name, ranks, parameters in torch_training.trainings():
        yield f'{{"{name}", {ranks}, {braces(parameters)}}}'


def layouts():
    for cap, tensors, order, at_first, rebuilt in torch_training.layouts():
        sizes = ["{ddpp::dtype::%s, %d}" % tensor for tensor in tensors]
        yield f"{{{cap}, {braces(sizes)}, {braces(order)}, {braces(at_first)}, {braces(braces(b) for b in rebuilt)}}}"


def errors():
    chance = random.Random(9)
    for count in [1, 2, 50]:
        values = [chance.uniform(-3, 3) for _ in range(count)]
        truths = [chance.uniform(-3, 3) for _ in range(count)]
        labels = [chance.randrange(4) for _ in range(count)]
        predicted = [chance.randrange(4) for _ in range(count)]
        measures = [sklearn.metrics.mean_absolute_error(truths, values), sklearn.metrics.mean_squared_error(truths, values),
                    sklearn.metrics.accuracy_score(labels, predicted)]
        yield f"{{{', '.join(repr(float(m)) for m in measures)}, {', '.join(map(braces, [values, truths, labels, predicted]))}}}"


TABLES = [
    ("training", "const char* name; int ranks; std::vector<double> parameters;", trainings),
    ("permutation", "std::size_t count; std::uint64_t seed; std::vector<std::size_t> order;", permutations),
    ("permutation_sum", "std::size_t count; std::uint64_t seed, sum;", permutation_sums),
    ("sampling", "std::size_t count; bool shuffle, drop_last; std::vector<std::vector<std::size_t>> ranks;", samplers),
    (
        "bucketing",
        "std::vector<ddpp::gradient_size> gradients; std::vector<std::size_t> limits; ddpp::bucket_layout buckets; "
        "std::vector<std::size_t> order; ddpp::bucket_layout in_order;",
        buckets,
    ),
    (
        "layout",
        "double cap_mb; std::vector<tensor> tensors; std::vector<std::size_t> order, bytes_at_first; ddpp::bucket_layout rebuilt;",
        layouts,
    ),
    (
        "error",
        "double absolute, squared, accuracy; std::vector<double> values, truths; std::vector<std::size_t> labels, predicted;",
        errors,
    ),
    (
        "precision",
        "double average; std::vector<double> scores; std::vector<int> labels; "
        "std::vector<double> precision, recall, threshold;",
        precisions,
    ),
    (
        "area",
        "double value; std::vector<double> scores; std::vector<int> labels; std::vector<double> false_rate, true_rate;",
        areas,
    ),
    ("confusion", "std::size_t classes; std::vector<std::size_t> labels, predicted; std::vector<std::uint64_t> counts;", confusions),
]


def header():
    yield "// SPDX-License-Identifier: BSL-1.0"
    yield "// Made by generate_oracles.py; not to be edited."
    yield "// clang-format off"
    yield "#pragma once"
    yield ""
    yield "#include <ddpp/bucket_assignment.hpp>"
    yield ""
    for include in ["cstddef", "cstdint", "vector"]:
        yield f"#include <{include}>"
    yield ""
    yield "namespace oracles {"
    yield ""
    yield f'inline constexpr const char* made_by = "torch {torch.__version__}, scikit-learn {sklearn.__version__}";'
    yield "struct tensor { ddpp::dtype dtype; std::size_t count; };"
    for name, fields, rows in TABLES:
        yield ""
        yield f"struct {name} {{ {fields} }};"
        yield f"inline const std::vector<{name}> {name}s = {{"
        for row in rows():
            yield f"  {row},"
        yield "};"
    yield ""
    yield "}  // namespace oracles"


def main():
    text = "\n".join(header()) + "\n"
    if sys.argv[1:] != ["--check"]:
        sys.stdout.write(text)
        return 0
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "oracles.hpp"), encoding="ascii") as kept:
        def rows(whole):
            return [line for line in whole.splitlines() if not line.startswith("inline constexpr const char* made_by")]

        if rows(kept.read()) == rows(text):
            return 0
    print("oracles.hpp is not what the installed packages say", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
