// Tensors of the device, and the two stand-ins for one: on the CPU where its numbers are, and on Meta for its
// form.
#pragma once

#include <ATen/core/Tensor.h>

#include "memory.h"

namespace strict {

bool ours(const at::Tensor& tensor);

// The tensor as threads of streams read and write it: on the CPU, and owning nothing.
at::Tensor inside(const at::Tensor& tensor);

// Shape, strides and dtype of the tensor, without numbers.
at::Tensor form(const at::Tensor& tensor);

at::Tensor empty_on(DeviceIndex device, at::IntArrayRef size, at::IntArrayRef stride, at::ScalarType dtype);
at::Tensor empty_as(DeviceIndex device, const at::Tensor& form);

void resize_storage(const c10::Storage& storage, size_t bytes);

// An operator makes the host wait for the current stream; an error while `set_sync_debug_mode("error")`.
void host_waits(DeviceIndex device);

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool non_blocking);
at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target);

}  // namespace strict
