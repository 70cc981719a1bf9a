#include "src/base/log.h"

#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string_view>

#include "spdlog/sinks/stdout_color_sinks.h"

namespace prism {

bool ColorWanted(int fd) {
  const char* no_color = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  return (no_color == nullptr || *no_color == '\0') && isatty(fd) == 1 &&
         (term == nullptr || std::string_view(term) != "dumb");
}

void InitLog(const LogOptions& options) {
  auto sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>(
      ColorWanted(STDERR_FILENO) ? spdlog::color_mode::always : spdlog::color_mode::never);
  auto logger = std::make_shared<spdlog::logger>("prism", std::move(sink));
  logger->set_level(options.verbosity < 0    ? spdlog::level::warn
                    : options.verbosity == 0 ? spdlog::level::info
                    : options.verbosity == 1 ? spdlog::level::debug
                                             : spdlog::level::trace);
  logger->set_pattern(options.verbosity > 0 ? "prism: %H:%M:%S.%e %^%l%$: %v" : "prism: %^%v%$");
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace prism
