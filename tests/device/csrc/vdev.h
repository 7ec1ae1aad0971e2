/* What the parts of the device for tests know of each other. `vdev.cpp` puts them into one translation unit.

   The device is a PrivateUse1 backend over RAM: its kernels are the CPU's, its memory is a part of RAM that has its own
   allocator and its own hard limit, its streams are threads. */

#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace vdev {

constexpr int kNumDevices = 2;
constexpr auto kType = c10::DeviceType::PrivateUse1;

/* What tests turn. The defaults are those of `reset_controls`. */
struct Controls {
  std::atomic<double> copy_bytes_per_s{0}; /* of copies between host and device; 0: as fast as memory */
  std::atomic<int64_t> delay_us{0};        /* before every queued op */
  std::atomic<bool> poison{false};         /* freed memory is filled with 0xFF: NaN in every floating-point type */
  std::atomic<bool> blocking{false};       /* every op has ended when its call returns */
  std::atomic<int64_t> most_pinned{-1};    /* bytes past which no memory can be page-locked; -1: nothing bounds it */
  std::array<std::atomic<bool>, kNumDevices> is_lost{}; /* every call to such a device fails, as after a reset */
  std::atomic<bool> virtual_time{false};   /* events tell the clocks of streams (Note: [Virtual time] in streams.cpp) */
};
inline Controls controls;

/* A queue and the thread that works it off. Tickets count what was queued. */
struct Stream {
  int device;
  int64_t id;

  uint64_t enqueue(std::function<void()> work); /* with `blocking`, it has run when the call returns */
  void wait(uint64_t ticket);                   /* throws what a queued op threw */
  void drain() { wait(last_ticket()); }
  uint64_t last_ticket();
  bool reached(uint64_t ticket);
  double clock_s = 0; /* its virtual time; only what runs on it changes it */

 private:
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> waiting;
  uint64_t queued = 0, done = 0;
  bool has_thread = false;
  std::exception_ptr error;
  void work();
};

int current_device();
int exchange_device(int device);
Stream& current_stream(int device);
Stream& stream_of(const c10::Stream& stream);
c10::Stream as_c10(const Stream& stream);
void synchronize_device(int device);
void check_not_lost(int device); /* throws what torch raises as torch.AcceleratorError */
enum class Span : int { kCompute, kToHost, kToDevice };
void advance(Stream& stream, Span kind, double label, double seconds); /* to be run on the stream */
void begin_virtual_time(bool is_on);
at::Tensor virtual_spans();
void wait_for(Stream& waiting, Stream& other); /* on the device: what is queued on `waiting` from here on runs after */

/* While one lives, what the CPU allocator is asked for on this thread comes out of the device's memory. */
struct KernelScope {
  KernelScope(Stream& stream, bool is_queued);
  ~KernelScope();
  KernelScope(const KernelScope&) = delete;

 private:
  Stream* outer_stream;
  bool outer_is_queued;
};

bool is_device_address(const void* address);
int device_of_address(const void* address);
void install_allocators();
void set_limit(int device, int64_t nbytes);
void set_others(int device, int64_t nbytes); /* what another process has of it */
void set_segments(int64_t small_nbytes, int64_t large_nbytes);

at::HostAllocator* pinned_allocator();
bool is_pinned_address(const void* address);
void record_pinned(const void* address, Stream& stream);

const at::Generator& default_generator(int device);
at::Generator cpu_generator_of(const at::Generator& generator);

/* CPU tensors that share the memory of device tensors, own none of it, and find their way back. */
struct Aliases {
  explicit Aliases(int device) : device(device) {}
  at::Tensor of(const at::Tensor& tensor);        /* CPU tensors are passed through */
  at::Tensor result(const at::Tensor& cpu);       /* of a kernel: a view of an argument's memory, or memory of its own */
  void write_back(const at::Tensor& tensor, const at::Tensor& alias); /* sizes and memory that an op has changed */

 private:
  int device;
  std::vector<std::pair<c10::Storage, c10::Storage>> storages; /* of the device, of its alias */
  c10::Storage adopted(const c10::Storage& cpu);
};

at::Tensor cpu_alias(const at::Tensor& tensor);
void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack);

/* Runs `kernel` now, in the caller, after everything that the current stream has queued. */
template <typename Kernel>
auto run_now(int device, Kernel&& kernel) {
  auto& stream = current_stream(device);
  stream.drain();
  KernelScope scope(stream, false);
  at::AutoDispatchBelowADInplaceOrView below;
  return kernel();
}

}  // namespace vdev
