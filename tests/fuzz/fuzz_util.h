// What the fuzz targets share. A target asserts with FUZZ_CHECK, so that a wrong result ends it as
// a crash does.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

#define FUZZ_CHECK(condition)                                                        \
  do {                                                                               \
    if (!(condition)) {                                                              \
      std::fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                  \
    }                                                                                \
  } while (false)

namespace baton {

inline std::string_view FuzzText(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// `text` at each line "---", which is dropped: one input that stands for several files stays
// readable. Exactly `n` parts; missing ones are empty, the last holds the rest.
inline std::vector<std::string_view> FuzzParts(std::string_view text, size_t n) {
  constexpr std::string_view kLine = "\n---\n";
  std::vector<std::string_view> parts;
  while (parts.size() + 1 < n) {
    const size_t at = text.find(kLine);
    parts.push_back(text.substr(0, at));
    text = at == std::string_view::npos ? std::string_view() : text.substr(at + kLine.size());
  }
  parts.push_back(text);
  return parts;
}

// A file in memory, for readers that map a path.
class FuzzFile {
 public:
  explicit FuzzFile(std::string_view bytes) : fd_(memfd_create("fuzz", MFD_CLOEXEC)) {
    FUZZ_CHECK(fd_ >= 0);
    FUZZ_CHECK(write(fd_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  }
  ~FuzzFile() { close(fd_); }
  FuzzFile(const FuzzFile&) = delete;
  FuzzFile& operator=(const FuzzFile&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  const int fd_;
};

// An error says something, and not all of a hostile input.
inline void CheckError(const absl::Status& status) {
  FUZZ_CHECK(!status.ok());
  FUZZ_CHECK(!status.message().empty());
  FUZZ_CHECK(status.message().size() < 8192);
}

}  // namespace baton
