#include "streams.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <thread>
#include <vector>

// Of the OpenMP that torch has loaded; there is none in a torch that was built without.
extern "C" __attribute__((weak)) void omp_set_num_threads(int);

namespace strict {

static std::atomic<uint64_t> current_seed{[] {
  const char* text = std::getenv("STRICT_SEED");
  return text ? uint64_t(std::strtoull(text, nullptr, 10)) : 0;
}()};

void Queue::give(Task task, bool late) {
  {
    std::lock_guard<std::mutex> hold(mutex_);
    if (!started_) {
      started_ = true;
      std::thread([this] { serve(); }).detach();
    }
    std::chrono::microseconds delay{0};
    const int64_t longest = settings().delay_us;
    if (late && longest > 0 && std::uniform_real_distribution<>(0, 1)(random_) < settings().delay_share)
      delay = std::chrono::microseconds(std::uniform_int_distribution<int64_t>(1, longest)(random_));
    counts().delay_us += delay.count();
    entries_.push_back({std::move(task), delay});
    ++count_given_;
  }
  given_.notify_one();
}

void Queue::push(Task task) { give(std::move(task), false); }

void Queue::launch(Task task) {
  ++counts().launches;
  give(std::move(task), true);
  if (settings().serial) wait();
}

void Queue::serve() {
  at::get_num_threads();  // sets this thread up with as many as the process has: one is to be enough
  if (omp_set_num_threads) omp_set_num_threads(1);
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::NoGradGuard no_grad;
  for (;;) {
    Entry entry;
    {
      std::unique_lock<std::mutex> hold(mutex_);
      given_.wait(hold, [&] { return !entries_.empty(); });
      entry = std::move(entries_.front());
      entries_.pop_front();
    }
    if (entry.delay.count()) std::this_thread::sleep_for(entry.delay);
    try {
      entry.task();
    } catch (const std::exception& error) {
      set_fault(device, message(error));
    }
    entry.task = nullptr;  // what it owns goes before anybody is told that it is done
    {
      std::lock_guard<std::mutex> hold(mutex_);
      ++count_done_;
    }
    finished_.notify_all();
  }
}

void Queue::wait() {
  std::unique_lock<std::mutex> hold(mutex_);
  const auto upto = count_given_;
  finished_.wait(hold, [&] { return count_done_ >= upto; });
}

bool Queue::idle() {
  std::lock_guard<std::mutex> hold(mutex_);
  return count_done_ == count_given_;
}

void Queue::seed(uint64_t number) {
  std::lock_guard<std::mutex> hold(mutex_);
  std::seed_seq words{uint32_t(number), uint32_t(number >> 32), uint32_t(device), uint32_t(id)};
  random_.seed(words);
}

static std::vector<std::vector<Queue*>>& queues() {
  static auto* all = [] {
    auto* made = new std::vector<std::vector<Queue*>>(device_count());
    for (int device = 0; device < device_count(); ++device)
      for (int id = 0; id <= POOL; ++id) {
        (*made)[device].push_back(new Queue(DeviceIndex(device), id));
        (*made)[device].back()->seed(current_seed);
      }
    return made;
  }();
  return *all;
}

Queue& queue(DeviceIndex device, StreamId id) { return *queues().at(device).at(id); }

Queue& queue(const c10::Stream& stream) { return queue(stream.device_index(), stream.id()); }

void wait_for_device(DeviceIndex device) {
  for (auto* each : queues().at(device)) each->wait();
}

void seed_delays(uint64_t seed) {
  current_seed = seed;
  for (auto& device : queues())
    for (auto* each : device) each->seed(seed);
}

uint64_t seed_of_delays() { return current_seed; }

static thread_local DeviceIndex device_of_thread = 0;
static thread_local std::array<StreamId, MOST_DEVICES> streams_of_thread{};

static c10::Stream stream(DeviceIndex device, StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(TYPE, device), id);
}

DeviceIndex current_device() { return device_of_thread; }

void set_current_device(DeviceIndex device) { device_of_thread = device; }

c10::Stream current_stream(DeviceIndex device) { return stream(device, streams_of_thread.at(device)); }

void set_current_stream(const c10::Stream& stream) {
  streams_of_thread.at(stream.device_index()) = stream.id();
}

Queue& current_queue(DeviceIndex device) { return queue(device, streams_of_thread.at(device)); }

c10::Stream default_stream(DeviceIndex device) { return stream(device, 0); }

c10::Stream next_stream(DeviceIndex device) {
  static std::array<std::atomic<unsigned>, MOST_DEVICES> handed_out{};
  return stream(device, 1 + handed_out.at(device)++ % POOL);
}

void Moment::happen() {
  {
    std::lock_guard<std::mutex> hold(mutex_);
    happened_ = true;
    time_ = Clock::now();
  }
  changed_.notify_all();
}

void Moment::wait() {
  std::unique_lock<std::mutex> hold(mutex_);
  changed_.wait(hold, [&] { return happened_; });
}

bool Moment::happened() {
  std::lock_guard<std::mutex> hold(mutex_);
  return happened_;
}

std::shared_ptr<Moment> mark(Queue& queue) {
  auto moment = std::make_shared<Moment>();
  queue.push([moment] { moment->happen(); });
  return moment;
}

void hold_back(Queue& queue, std::shared_ptr<Moment> moment) {
  queue.push([moment] { moment->wait(); });
}

void Event::record(Queue& queue) {
  std::lock_guard<std::mutex> hold(mutex_);
  last_ = mark(queue);
}

void Event::block(Queue& queue) {
  if (auto moment = last()) hold_back(queue, moment);
}

std::shared_ptr<Moment> Event::last() {
  std::lock_guard<std::mutex> hold(mutex_);
  return last_;
}

}  // namespace strict
