// SPDX-License-Identifier: BSL-1.0
// The example for CUDA devices as a C++ compiler takes it, for the double.
#include "../../examples/cuda_fashion_mnist.cu"
