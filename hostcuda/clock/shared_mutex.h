// Locks of memory and files that processes share, taken without sleeping.
//
// To the virtual clock a process asleep in a lock that others hold is one that waits for somebody
// outside, and does not hold it (virtual_clock.h): the clock could pass it by after the lock has
// come free. So who waits for such a lock runs, but lets others run first. For short sections.
//
// Stateless; thread-safe.
#ifndef HOSTCUDA_CLOCK_SHARED_MUTEX_H_
#define HOSTCUDA_CLOCK_SHARED_MUTEX_H_

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <sys/file.h>

namespace hostcuda {

/// As pthread_mutex_lock of a robust mutex.
inline int LockAwake(pthread_mutex_t* mutex) {
  int result = 0;
  while ((result = pthread_mutex_trylock(mutex)) == EBUSY) sched_yield();
  return result;
}

/// As flock; `operation` without LOCK_NB.
inline int LockFileAwake(int fd, int operation) {
  int result = 0;
  while ((result = flock(fd, operation | LOCK_NB)) != 0 && (errno == EWOULDBLOCK || errno == EINTR))
    sched_yield();
  return result;
}

}  // namespace hostcuda

#endif  // HOSTCUDA_CLOCK_SHARED_MUTEX_H_
