// Random generators: those of a CPU, kept by the host. As on CUDA, what a kernel draws is settled when it is
// launched: each gets a seed of its own.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>

#include "streams.h"

namespace strict {

at::Generator& default_generator(DeviceIndex device);  // -1: of the current device

}  // namespace strict
