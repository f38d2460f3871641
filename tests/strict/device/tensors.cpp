#include "tensors.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cstring>

namespace strict {

constexpr auto KEYS = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);

bool ours(const at::Tensor& tensor) { return tensor.defined() && tensor.device().type() == TYPE; }

at::Tensor inside(const at::Tensor& tensor) {
  const auto options = at::TensorOptions().dtype(tensor.dtype()).device(at::kCPU);
  if (tensor.numel() == 0) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  const void* base = tensor.storage().data();
  TORCH_CHECK(base, "strict: a tensor of shape ", tensor.sizes(), " has lost its memory");
  char* start = inside(base) + tensor.storage_offset() * tensor.itemsize();
  at::Tensor made = at::from_blob(start, tensor.sizes(), tensor.strides(), options);
  if (tensor.is_conj()) made._set_conj(true);
  if (tensor.is_neg()) made._set_neg(true);
  return made;
}

at::Tensor form(const at::Tensor& tensor) {
  return at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
}

at::Tensor empty_on(DeviceIndex device, at::IntArrayRef size, at::IntArrayRef stride, at::ScalarType dtype) {
  c10::DeviceGuard guard(c10::Device(TYPE, device));
  return at::detail::empty_strided_generic(size, stride, &allocator(), KEYS, dtype);
}

at::Tensor empty_as(DeviceIndex device, const at::Tensor& form) {
  return empty_on(device, form.sizes(), form.strides(), form.scalar_type());
}

void resize_storage(const c10::Storage& storage, size_t bytes) {
  auto* impl = storage.unsafeGetStorageImpl();
  TORCH_CHECK(impl->resizable(), "strict: this storage cannot be resized");
  const auto device = impl->device().index();
  c10::DeviceGuard guard(impl->device());
  auto fresh = allocator().allocate(bytes);
  if (const size_t kept = std::min(bytes, impl->nbytes())) {
    char *to = inside(fresh.get()), *from = inside(impl->data());
    current_queue(device).launch([=] { std::memcpy(to, from, kept); });
  }
  impl->set_data_ptr_noswap(std::move(fresh));
  impl->set_nbytes(bytes);
}

namespace {

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                 std::optional<at::Device> device, std::optional<bool> pin,
                 std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(c10::layout_or_default(layout) == c10::Layout::Strided, "strict: tensors are strided");
  TORCH_CHECK(!c10::pinned_memory_or_default(pin), "Only dense CPU tensors can be pinned");
  c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(size, &allocator(), KEYS, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> layout, std::optional<at::Device> device,
                         std::optional<bool> pin) {
  TORCH_CHECK(c10::layout_or_default(layout) == c10::Layout::Strided, "strict: tensors are strided");
  TORCH_CHECK(!c10::pinned_memory_or_default(pin), "Only dense CPU tensors can be pinned");
  c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(size, stride, &allocator(), KEYS, c10::dtype_or_default(dtype));
}

at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                      std::optional<c10::SymInt> offset) {
  return at::cpu::as_strided_symint(self, size, stride, offset);
}

at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

const at::Tensor& resize_(const at::Tensor& self, c10::SymIntArrayRef symbolic,
                          std::optional<at::MemoryFormat> format) {
  const auto size = C10_AS_INTARRAYREF_SLOW(symbolic);
  auto* impl = self.unsafeGetTensorImpl();
  if (self.sizes() != size) {
    impl->set_sizes_contiguous(size);
    const size_t bytes =
        at::detail::computeStorageNbytesContiguous(size, self.itemsize(), self.storage_offset());
    if (bytes > impl->storage().nbytes()) resize_storage(impl->storage(), bytes);
  }
  if (format) impl->empty_tensor_restride(*format);
  return self;
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return at::native::set_tensor_(self, source);
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source) { return at::native::set_(self, source); }

at::Tensor& set_storage_offset(at::Tensor& self, at::Storage source, int64_t offset, c10::IntArrayRef size,
                               c10::IntArrayRef stride) {
  return at::cpu::set_(self, source, offset, size, stride);
}

void record_stream(at::Tensor& self, at::Stream stream) {
  allocator().recordStream(self.storage().data_ptr(), stream);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", as_strided);
  m.impl("view", view);
  m.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  m.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  m.impl("_reshape_alias", reshape_alias);
  m.impl("resize_", resize_);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("set_.source_Storage", set_storage);
  m.impl("set_.source_Storage_storage_offset", set_storage_offset);
  m.impl("record_stream", record_stream);
}

}  // namespace
}  // namespace strict
