// SPDX-License-Identifier: BSL-1.0
// The protocols of shared memory in a model of C++'s memory: relacy, by Dmitry Vyukov, runs the very
// templates that the backends `shm` and `threads` are made of, chooses who goes next and what each load
// returns, and finds data races and threads that sleep for ever. See
// docs/decisions/0013-proof-of-the-protocol.md.
#include <cstddef>
#include <new>

#include "agreement.hpp"
#include "board.hpp"
#include "messages.hpp"
#include "parking.hpp"
#include "ring.hpp"
#include "slots.hpp"

// relacy replaces the allocation functions by inline ones, which count what a test allocates. So that all
// code calls them, also that of the standard library, they must be there, and the sized ones must be theirs.
[[gnu::used]] void* (*const allocate)(std::size_t) = &::operator new;
[[gnu::used]] void* (*const allocate_array)(std::size_t) = &::operator new[];
void operator delete(void* memory, std::size_t) noexcept { ::operator delete(memory); }
void operator delete[](void* memory, std::size_t) noexcept { ::operator delete[](memory); }
[[gnu::used]] void (*const release)(void*) = &::operator delete;
[[gnu::used]] void (*const release_array)(void*) = &::operator delete[];
