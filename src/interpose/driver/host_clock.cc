#include "src/interpose/driver/host_clock.h"

#include <atomic>

#include "src/interpose/driver/driver_clock.h"

namespace prism::interpose::driver {
namespace {

thread_local uint64_t t_accounted_ns = 0;  // 0: the thread has made no call yet
thread_local bool t_enqueued = false;

// Who enqueued last, and when. Two words that may be of different calls: then some nanoseconds
// count for the wrong thread.
std::atomic<uint32_t> g_thread{UINT32_MAX};
std::atomic<uint64_t> g_ns{0};

}  // namespace

void HostClock::Begin(trace::Writer* writer) {
  const uint64_t now = DriverClock::NowNs();
  const uint32_t last = g_thread.load(std::memory_order_acquire);
  const uint64_t since = g_ns.load(std::memory_order_relaxed);
  if (last != UINT32_MAX && since > t_accounted_ns && last != writer->ThisThread()) {
    writer->Handoff(last);
    t_accounted_ns = since;
  }
  if (t_accounted_ns != 0 && now > t_accounted_ns) writer->HostTime(now - t_accounted_ns);
  t_accounted_ns = now;
}

void HostClock::End(trace::Writer* writer) {
  const uint64_t now = DriverClock::NowNs();
  writer->HostCall(now - t_accounted_ns);
  t_accounted_ns = now;
  if (!t_enqueued) return;
  t_enqueued = false;
  g_ns.store(now, std::memory_order_relaxed);
  g_thread.store(writer->ThisThread(), std::memory_order_release);
}

void HostClock::Waited() { t_accounted_ns = DriverClock::NowNs(); }

void HostClock::Enqueued(trace::Writer* writer) {
  t_enqueued = true;
  CountSoFar(writer);
}

void HostClock::CountSoFar(trace::Writer* writer) {
  // A GPU sees work a little before the call ends, which the measured time of the work includes. On
  // a virtual clock work begins when the call has taken its time.
  if (!DriverClock::is_virtual() || t_accounted_ns == 0) return;
  const uint64_t now = DriverClock::NowNs();
  if (now > t_accounted_ns) writer->HostTime(now - t_accounted_ns);
  t_accounted_ns = now;
}

}  // namespace prism::interpose::driver
