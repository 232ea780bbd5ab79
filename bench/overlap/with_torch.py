# SPDX-License-Identifier: BSL-1.0
"""One rank of the overlap benchmark, in PyTorch over Gloo: the same as with_ddpp.cpp. See `run`.

usage: with_torch.py DATA STEPS BATCH BUCKET_MB WIDTH...    (a launcher's environment says which rank it is)
"""
import gzip
import json
import pathlib
import sys
import time

import numpy
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def network(widths):
    layers = []
    for inputs, outputs in zip(widths, widths[1:]):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def read(path, header):
    with gzip.open(path) as file:
        return numpy.frombuffer(file.read(), dtype=numpy.uint8, offset=header)


def seconds(action):
    dist.barrier()
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def main(data, steps, batch, bucket_mb, widths):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    folder, mine = pathlib.Path(data), slice(dist.get_rank() * batch, (dist.get_rank() + 1) * batch)
    images = read(folder / "train-images-idx3-ubyte.gz", 16).reshape(-1, widths[0])[mine]
    samples = torch.from_numpy(images.astype("float32") / 255)
    labels = torch.from_numpy(read(folder / "train-labels-idx1-ubyte.gz", 8)[mine].astype("int64"))
    alone = network(widths)
    ddp = DistributedDataParallel(network(widths), bucket_cap_mb=bucket_mb)
    criterion = torch.nn.CrossEntropyLoss()

    def compute(model):
        for parameter in model.parameters():
            parameter.grad = None
        criterion(model(samples), labels).backward()

    for _ in range(3):  # and the buckets are laid out anew
        compute(ddp)
        compute(alone)
    sizes = ddp._get_ddp_logging_data()["rebuilt_bucket_sizes"].split(", ")
    buckets = [torch.zeros(int(size) // 4) for size in sizes]

    def communicate():
        pending = [dist.all_reduce(bucket.div_(dist.get_world_size()), async_op=True) for bucket in buckets]
        for each in pending:
            each.wait()

    communicate()
    times = {"compute": [], "communication": [], "step": []}
    for _ in range(steps):
        times["compute"].append(seconds(lambda: compute(alone)))
        times["communication"].append(seconds(communicate))
        times["step"].append(seconds(lambda: compute(ddp)))
    for name, values in times.items():
        slowest = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        times[name] = slowest.tolist()
    if dist.get_rank() == 0:
        print(json.dumps({"buckets": len(buckets), **times}), flush=True)
    dist.barrier()


main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), [int(width) for width in sys.argv[5:]])
