// Copies, which wait for what CUDA's wait for.
//
// - Between devices: on the source's current stream, after what the destination's current stream has been
// given, and
//   before what it is given next.
// - Between pinned memory of the host and a device, `non_blocking`: on the device's current stream, and the
// host goes on.
// - From pageable memory, `non_blocking`: the host goes on once the driver has taken the numbers.
// - All others make the host wait for the stream. So do those to the host that change dtype or layout: they
// go by way of
//   memory that is not pinned.
#include <ATen/Functions.h>
#include <torch/library.h>

#include <cstring>

#include "pinned.h"
#include "tensors.h"

namespace strict {

void host_waits(DeviceIndex device) {
  ++counts().host_waits;
  TORCH_CHECK(settings().sync_debug < 2, "called a synchronizing operation");
  current_queue(device).wait();
  raise_fault(device);
}

namespace {

void between_devices(const at::Tensor& source, const at::Tensor& target) {
  auto& from = current_queue(source.device().index());
  auto& to = current_queue(target.device().index());
  const bool two = from.device != to.device;
  if (two) hold_back(from, mark(to));
  from.launch([a = inside(source), b = inside(target)] { b.copy_(a); });
  if (two) hold_back(to, mark(from));
}

// Whether the bytes of one are those of the other.
bool alike(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.strides() == b.strides() &&
         a.is_non_overlapping_and_dense() && a.is_neg() == b.is_neg();
}

void converted_to_device(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  const auto device = target.device().index();
  auto made = source.to(target.scalar_type()).expand_as(target).resolve_conj().resolve_neg();
  made = made.clone(at::MemoryFormat::Contiguous);
  auto there = target.is_contiguous() ? target : at::empty_like(target, at::MemoryFormat::Contiguous);
  char* to = static_cast<char*>(inside(there).data_ptr());
  current_queue(device).launch([made, to] { std::memcpy(to, made.const_data_ptr(), made.nbytes()); });
  if (!there.is_same(target)) between_devices(there, target);
  if (!non_blocking) host_waits(device);
}

void converted_to_host(const at::Tensor& source, const at::Tensor& target) {
  const auto device = source.device().index();
  auto made = at::empty(target.sizes(), target.options().device(at::kCPU).pinned_memory(false));
  current_queue(device).launch([a = inside(source), made] { made.copy_(a); });
  host_waits(device);
  target.copy_(made);
}

char* start(const at::Tensor& tensor) {
  return static_cast<char*>(const_cast<void*>(tensor.storage().data())) +
         tensor.storage_offset() * tensor.itemsize();
}

void with_host(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  const bool in = ours(target);
  const at::Tensor &host = in ? source : target, &remote = in ? target : source;
  const auto device = remote.device().index();
  auto& stream = current_queue(device);
  const size_t bytes = target.numel() * target.itemsize();
  char *there = inside(start(remote)), *here = start(host);
  const bool pinned = pinned_allocator().holds(here);
  if (in && !pinned && non_blocking) {
    auto taken = std::make_shared<std::string>(here, bytes);
    stream.launch([taken, there, bytes] { std::memcpy(there, taken->data(), bytes); });
  } else {
    stream.launch([=] { in ? std::memcpy(there, here, bytes) : std::memcpy(here, there, bytes); });
    if (pinned) pinned_allocator().record_event(here, nullptr, current_stream(device));
    if (!non_blocking || !pinned) host_waits(device);
  }
  // Lazily conjugated numbers are conjugated afterwards, as on CUDA: by the host at once where it is the
  // destination.
  if (source.is_conj() != target.is_conj()) target.conj_physical_();
}

at::Scalar local_scalar(const at::Tensor& self) {
  host_waits(self.device().index());
  return inside(self).clone().item();
}

}  // namespace

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  if (target.numel() == 0) return target;
  if (ours(source) && ours(target))
    between_devices(source, target);
  else if (alike(source, target))
    with_host(source, target, non_blocking);
  else if (ours(target))
    converted_to_device(source, target, non_blocking);
  else
    converted_to_host(source, target);
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  if (target.sizes() != source.sizes()) target.resize_(source.sizes());
  return copy_from(source, target, false);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar);
}

// Copies read and write lazily conjugated and negated tensors themselves, as `copy_` does.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

}  // namespace strict
