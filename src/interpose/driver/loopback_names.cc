// Names of loopback addresses, without the resolver.
//
// PyTorch's TCPStore asks for the name of every peer of every connection (getnameinfo, for its log
// lines). All ranks of a captured job are on 127.0.0.1; a machine whose resolver does not answer
// for it (a laptop without a network, a resolver that limits its rate) would hold each connection
// for seconds. The answer a resolver that knows nothing gives, the address itself, is given at
// once. Only under a controller, and only for loopback addresses; everything else goes to libc.
#include <dlfcn.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdlib>

#include "src/wire/protocol.h"

namespace {

bool IsLoopback(const sockaddr* address, socklen_t length) {
  if (address == nullptr) return false;
  if (address->sa_family == AF_INET && length >= sizeof(sockaddr_in)) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
    return (ntohl(v4->sin_addr.s_addr) >> 24) == 127;
  }
  if (address->sa_family == AF_INET6 && length >= sizeof(sockaddr_in6)) {
    const in6_addr& v6 = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
  }
  return false;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int getnameinfo(
    const sockaddr* address, socklen_t length, char* host, socklen_t host_bytes, char* service,
    socklen_t service_bytes, int flags) {
  static const auto real =
      reinterpret_cast<decltype(&getnameinfo)>(dlsym(RTLD_NEXT, "getnameinfo"));
  if (real == nullptr) return EAI_FAIL;
  if ((flags & NI_NAMEREQD) == 0 && IsLoopback(address, length) &&
      getenv(prism::wire::kEnvSocket) != nullptr) {
    flags |= NI_NUMERICHOST;
  }
  return real(address, length, host, host_bytes, service, service_bytes, flags);
}
