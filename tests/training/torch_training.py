# SPDX-License-Identifier: BSL-1.0
"""Parameters after training with PyTorch's DistributedDataParallel over Gloo, case by case; and how it lays out buckets.

The model is made so that its gradients are simple elsewhere: parameter k of sizes(k) elements adds
sum(factor * w^2) to the loss where it is used, and sum(buffer * w) where the model has a buffer.
tests/training/against_torch.cpp does the same steps.
"""
import contextlib
import os
import random
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

SIZES = [5, 1, 17, 8]
RATE = 0.125


def factors(k, rank, step):
    return torch.tensor([((7 * k + 3 * i + 5 * rank + 11 * step) % 13 - 6) / 8 for i in range(SIZES[k])],
                        dtype=torch.float64)


class Model(torch.nn.Module):
    def __init__(self, dtype, rank, with_buffer):
        super().__init__()
        # The ranks begin differently: rank 0's values count.
        self.weights = torch.nn.ParameterList(
            torch.nn.Parameter(torch.tensor([(k + i) / 4 + rank for i in range(n)], dtype=dtype))
            for k, n in enumerate(SIZES))
        if with_buffer:
            self.register_buffer("offset", torch.full((1,), float(rank), dtype=dtype))
        self.dtype, self.with_buffer = dtype, with_buffer

    def forward(self, rank, step, used):
        loss = 0
        for k in used:
            w = self.weights[k]
            loss = loss + (factors(k, rank, step).to(self.dtype) * w * w).sum()
            if self.with_buffer:
                loss = loss + (self.offset * w).sum()
        return loss


def everything(rank, step):
    return range(len(SIZES))


# Parameter 1 is used by no rank, 2 by some: what an optimizer does with a gradient that is none is left out.
def some(rank, step):
    return [0, 3] + ([2] if (rank + step) % 2 == 0 else [])


def every_third(step):
    return step % 3 == 2


def more_on_higher_ranks(rank):
    return 2 + 2 * rank


def bf16_compress_over_gloo(state, bucket):
    """default_hooks.bf16_compress_hook, whose own needs NCCL: cast, divide, sum; the sum is rounded once."""
    compressed = bucket.buffer().to(torch.bfloat16).div_(dist.get_world_size())
    bits = compressed.view(torch.uint8)  # Gloo knows no 16-bit integers
    everyone = [torch.empty_like(bits) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, bits)
    total = sum(each.view(torch.bfloat16).float() for each in everyone).to(torch.bfloat16)
    result = torch.futures.Future()
    result.set_result(bucket.buffer().copy_(total))
    return result


CASES = {
    "plain": {},
    "bucket_views": {"options": {"gradient_as_bucket_view": True}},
    "unused": {"options": {"find_unused_parameters": True}, "used": some},
    "unused_bucket_views": {"options": {"find_unused_parameters": True, "gradient_as_bucket_view": True}, "used": some},
    "static_graph": {"options": {"static_graph": True}},
    "accumulation": {"synchronised": every_third},
    "accumulation_bucket_views": {"synchronised": every_third, "options": {"gradient_as_bucket_view": True}},
    "accumulation_unused": {"synchronised": every_third, "options": {"find_unused_parameters": True}, "used": some},
    "buffers": {"with_buffer": True},
    "buffers_accumulation": {"with_buffer": True, "synchronised": every_third},
    "uneven": {"steps": more_on_higher_ranks},
    "uneven_by_live": {"steps": more_on_higher_ranks, "join": {"divide_by_initial_world_size": False}},
    "uneven_buffers": {"steps": more_on_higher_ranks, "with_buffer": True},
    "uneven_unused": {"steps": more_on_higher_ranks, "options": {"find_unused_parameters": True}, "used": some},
    "half": {"hook": default_hooks.fp16_compress_hook, "dtype": torch.float32},
    "half_accumulation": {"hook": default_hooks.fp16_compress_hook, "dtype": torch.float32, "synchronised": every_third},
    "bfloat": {"hook": bf16_compress_over_gloo, "dtype": torch.float32},
}


def train(rank, ranks, name):
    case = CASES[name]
    model = Model(case.get("dtype", torch.float64), rank, case.get("with_buffer", False))
    ddp = DistributedDataParallel(model, **case.get("options", {}))
    if "hook" in case:
        ddp.register_comm_hook(None, case["hook"])
    steps = case.get("steps", lambda rank: 6)(rank)
    synchronised = case.get("synchronised", lambda step: True)
    used = case.get("used", everything)
    uneven = Join([ddp], **case.get("join", {})) if "steps" in case else contextlib.nullcontext()
    with uneven:
        for step in range(steps):
            with contextlib.nullcontext() if synchronised(step) else ddp.no_sync():
                ddp(rank, step, used(rank, step)).backward()
            if model.with_buffer:
                model.offset += rank + 1
            if not synchronised(step):
                continue
            with torch.no_grad():
                for w in model.weights:
                    if w.grad is not None:
                        w -= RATE * w.grad
                    w.grad = None
    return [value for w in model.weights for value in w.tolist()]


def in_group(rank, ranks, port, work, results):
    """results[rank] = work(rank, ranks), in a process group over Gloo"""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    results[rank] = work(rank, ranks)
    dist.barrier()
    dist.destroy_process_group()


def run_in_group(ranks, work):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with multiprocessing.Manager() as manager:
        results = manager.dict()
        multiprocessing.spawn(in_group, (ranks, port, work, results), ranks)
        return [results[rank] for rank in range(ranks)]


def train_all(rank, ranks):
    return {name: train(rank, ranks, name) for name in (CASES if ranks == 3 else ["plain"])}


def trainings():
    """(name, ranks, parameters of all ranks one after the other)"""
    for ranks in (2, 3):
        results = run_in_group(ranks, train_all)
        for name in results[0]:
            yield name, ranks, [value for of_rank in results for value in of_rank[name]]


LAYOUT_TYPES = {"float32": torch.float32, "float64": torch.float64}


class Sum(torch.nn.Module):
    """Its gradients become ready in the order that forward() is given."""

    def __init__(self, tensors):
        super().__init__()
        self.weights = torch.nn.ParameterList(
            torch.nn.Parameter(torch.zeros(count, dtype=LAYOUT_TYPES[dtype])) for dtype, count in tensors)

    def forward(self, order):
        total = torch.zeros(1)
        for k in reversed(order):
            total = (total + self.weights[k].sum()) * 1.5
        return total.sum()


def lay_out(rank, ranks):
    chance = random.Random(8)
    rows = []
    for case in range(12):
        types = ["float32"] if case % 2 == 0 else list(LAYOUT_TYPES)
        tensors = [(chance.choice(types), chance.choice([1, 100, 50_000, 300_000, 800_000]) + chance.randrange(9))
                   for _ in range(chance.randint(1, 14))]
        if case == 11:
            tensors[len(tensors) // 2] = ("float32", 7_000_000)
        order = list(range(len(tensors)))
        chance.shuffle(order)
        cap = chance.choice([1, 25])  # the second is the default
        ddp = DistributedDataParallel(Sum(tensors), bucket_cap_mb=cap, find_unused_parameters=True)
        ddp(order).backward()
        # torch uses these limits from the start only where parameters may be unused.
        at_first = [int(size) for size in ddp._get_ddp_logging_data()["bucket_sizes"].split(", ")]
        ddp = DistributedDataParallel(Sum(tensors), bucket_cap_mb=cap)
        for _ in range(3):
            ddp(order).backward()
        rebuilt = ddp._get_ddp_logging_data()["rebuilt_per_bucket_param_indices"]
        rows.append((cap, tensors, order, at_first, [[int(k) for k in b.split()] for b in rebuilt.split(", ")]))
    return rows


def layouts():
    """(bucket_cap_mb, [(dtype, count)], order of readiness, bytes of the first buckets, parameters of the rebuilt ones)"""
    return run_in_group(1, lay_out)[0]
