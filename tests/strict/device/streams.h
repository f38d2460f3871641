// Streams and events.
//
// - A stream is a queue of tasks, done one after the other by a thread of its own. Nothing else orders tasks:
// what must
//   follow a task of another stream has to wait for an event.
// - A share of the kernels and copies starts late, by a random time. Delays are drawn when a task is given,
// from a
//   generator of each stream: the same seed and the same tasks give the same delays.
// - An event is a version: a wait is for what was recorded last when the wait was asked for, and for nothing
// if the
//   event has not been recorded yet.
#pragma once

#include <c10/core/Stream.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>

#include "settings.h"

namespace strict {

using c10::DeviceIndex;
using c10::StreamId;
using Task = std::function<void()>;

constexpr int POOL = 32;  // streams of each device besides the default one, handed out in turn as CUDA's are

class Queue {
 public:
  Queue(DeviceIndex device, StreamId id) : device(device), id(id) {}

  const DeviceIndex device;
  const StreamId id;

  void push(Task task);        // what the device itself does: never late
  void launch(Task task);      // a kernel or a copy
  void wait();                 // until everything given so far is done
  bool idle();                 // everything given so far is done
  void seed(uint64_t number);  // of the delays from now on

 private:
  struct Entry {
    Task task;
    std::chrono::microseconds delay;
  };
  void give(Task task, bool late);
  void serve();

  std::mutex mutex_;
  std::condition_variable given_, finished_;
  std::deque<Entry> entries_;
  uint64_t count_given_ = 0, count_done_ = 0;
  bool started_ = false;
  std::mt19937_64 random_;
};

Queue& queue(DeviceIndex device, StreamId id);
Queue& queue(const c10::Stream& stream);
Queue& current_queue(DeviceIndex device);

// State of the calling thread, as CUDA's.
DeviceIndex current_device();
void set_current_device(DeviceIndex device);
c10::Stream current_stream(DeviceIndex device);
void set_current_stream(const c10::Stream& stream);

c10::Stream default_stream(DeviceIndex device);
c10::Stream next_stream(DeviceIndex device);

void wait_for_device(DeviceIndex device);
void seed_delays(uint64_t seed);
uint64_t seed_of_delays();  // STRICT_SEED

// One recording of an event.
class Moment {
 public:
  using Clock = std::chrono::steady_clock;

  void happen();
  void wait();
  bool happened();
  Clock::time_point time() const { return time_; }  // of a moment that has happened

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool happened_ = false;
  Clock::time_point time_;
};

class Event {
 public:
  explicit Event(DeviceIndex device) : device(device) {}

  const DeviceIndex device;

  void record(Queue& queue);
  void block(Queue& queue);
  std::shared_ptr<Moment> last();  // null before the first recording

 private:
  std::mutex mutex_;
  std::shared_ptr<Moment> last_;
};

std::shared_ptr<Moment> mark(Queue& queue);  // happens after all that the queue has been given
void hold_back(Queue& queue, std::shared_ptr<Moment> moment);  // what the queue is given from now on

}  // namespace strict
