// A file descriptor that is closed with the object.
#pragma once

#include <unistd.h>

namespace baton {

class Descriptor {
 public:
  // What open() returned; negative: nothing to close.
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

}  // namespace baton
