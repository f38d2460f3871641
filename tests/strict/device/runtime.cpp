// What torch asks of a device that is not about tensors: the current device and stream, events, random
// generators.
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "generators.h"
#include "memory.h"
#include "pinned.h"
#include "tensors.h"

namespace strict {
namespace {

DeviceIndex checked(DeviceIndex device) {
  TORCH_CHECK(device >= 0 && device < device_count(), "there is no strict:", int(device), "; there are ",
              device_count());
  return device;
}

DeviceIndex index_of(c10::Device device) { return device.has_index() ? device.index() : current_device(); }

DeviceIndex exchange(DeviceIndex device) {
  const auto before = current_device();
  set_current_device(checked(device));
  return before;
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = TYPE;
  Guard() = default;
  explicit Guard(c10::DeviceType) {}

  c10::DeviceType type() const override { return TYPE; }
  c10::DeviceIndex deviceCount() const noexcept override { return DeviceIndex(device_count()); }
  c10::DeviceCapability getDeviceCapability(c10::Device) const override { return {}; }

  c10::Device getDevice() const override { return c10::Device(TYPE, current_device()); }
  void setDevice(c10::Device device) const override { set_current_device(checked(index_of(device))); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { set_current_device(device.index()); }
  c10::Device exchangeDevice(c10::Device device) const override {
    return c10::Device(TYPE, exchange(index_of(device)));
  }

  c10::Stream getStream(c10::Device device) const override { return current_stream(index_of(device)); }
  c10::Stream getDefaultStream(c10::Device device) const override { return default_stream(index_of(device)); }
  c10::Stream getNewStream(c10::Device device, int) const override { return next_stream(index_of(device)); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return next_stream(index_of(device));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    auto before = current_stream(stream.device_index());
    set_current_stream(stream);
    return before;
  }
  bool queryStream(const c10::Stream& stream) const override { return queue(stream).idle(); }
  void synchronizeStream(const c10::Stream& stream) const override {
    queue(stream).wait();
    raise_fault(stream.device_index());
  }
  void synchronizeDevice(DeviceIndex device) const override {
    wait_for_device(checked(device));
    raise_fault(device);
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    allocator().recordStream(data, stream);
  }

  void record(void** event, const c10::Stream& stream, DeviceIndex device, c10::EventFlag) const override {
    TORCH_CHECK(device == -1 || device == stream.device_index(), "an event of strict:", int(device),
                " cannot be recorded by a stream of strict:", int(stream.device_index()));
    if (!*event) *event = new Event(stream.device_index());
    static_cast<Event*>(*event)->record(queue(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event) static_cast<Event*>(event)->block(queue(stream));
  }
  bool queryEvent(void* event) const override {
    auto moment = event ? static_cast<Event*>(event)->last() : nullptr;
    return !moment || moment->happened();
  }
  void synchronizeEvent(void* event) const override {
    if (!event) return;
    auto& made = *static_cast<Event*>(event);
    if (auto moment = made.last()) moment->wait();
    raise_fault(made.device);
  }
  void destroyEvent(void* event, DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  double elapsedTime(void* first, void* second, DeviceIndex) const override {
    auto from = static_cast<Event*>(first)->last(), to = static_cast<Event*>(second)->last();
    TORCH_CHECK(from && to && from->happened() && to->happened(), "strict: an event has not happened yet");
    return std::chrono::duration<double, std::milli>(to->time() - from->time()).count();
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Generator : at::CPUGeneratorImpl {
  explicit Generator(DeviceIndex device) {
    device_ = c10::Device(TYPE, device);
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  void init() const override {}
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  DeviceIndex deviceCount() const override { return DeviceIndex(device_count()); }
  void setCurrentDevice(DeviceIndex device) const override { set_current_device(checked(device)); }
  DeviceIndex getCurrentDevice() const override { return current_device(); }
  DeviceIndex exchangeDevice(DeviceIndex device) const override { return exchange(device); }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override {
    return device >= 0 && device < device_count() ? exchange(device) : current_device();
  }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  bool isPinnedPtr(const void* data) const override { return pinned_allocator().holds(data); }
  at::Device getDeviceFromPtr(void* data) const override {
    return at::Device(TYPE, checked(device_of(data)));
  }
  const at::Generator& getDefaultGenerator(DeviceIndex device) const override {
    return default_generator(device);
  }
  at::Generator getNewGenerator(DeviceIndex device) const override {
    return at::make_generator<Generator>(device < 0 ? current_device() : device);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(storage, bytes);
  }
};

const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  return true;
}();

}  // namespace

at::Generator& default_generator(DeviceIndex device) {
  static auto* all = [] {
    auto* made = new std::vector<at::Generator>();
    for (int i = 0; i < device_count(); ++i) {
      made->push_back(at::make_generator<Generator>(DeviceIndex(i)));
      made->back().set_current_seed(c10::default_rng_seed_val);
    }
    return made;
  }();
  return all->at(device < 0 ? current_device() : device);
}

}  // namespace strict
