# SPDX-License-Identifier: BSL-1.0
"""Parameters after training with PyTorch's DistributedDataParallel over Gloo, case by case.

The model is made so that its gradients are simple elsewhere: parameter k of sizes(k) elements adds
sum(factor * w^2) to the loss where it is used, and sum(buffer * w) where the model has a buffer.
tests/training/against_torch.cpp does the same steps.
"""
import contextlib
import os
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


CASES = {
    "plain": {},
    "bucket_views": {"options": {"gradient_as_bucket_view": True}},
    "unused": {"options": {"find_unused_parameters": True}, "used": some},
    "static_graph": {"options": {"static_graph": True}},
    "accumulation": {"synchronised": lambda step: step % 3 == 2},
    "buffers": {"with_buffer": True},
    "uneven": {"steps": lambda rank: 2 + 2 * rank},
    "uneven_by_live": {"steps": lambda rank: 2 + 2 * rank, "join": {"divide_by_initial_world_size": False}},
    "half": {"hook": default_hooks.fp16_compress_hook, "dtype": torch.float32},
}


def train(rank, ranks, port, name, results):
    case = CASES[name]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
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
    results[rank] = [value for w in model.weights for value in w.tolist()]
    dist.barrier()
    dist.destroy_process_group()


def trainings():
    """(name, ranks, parameters of all ranks one after the other)"""
    for name in CASES:
        for ranks in (2, 3) if name == "plain" else (3,):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            with multiprocessing.Manager() as manager:
                results = manager.dict()
                multiprocessing.spawn(train, (ranks, port, name, results), ranks)
                yield name, ranks, [value for rank in range(ranks) for value in results[rank]]
