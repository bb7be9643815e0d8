// Child processes that are restarted when they die and stopped together.
//
// One thread (the caller's) drives everything through Poll(); one reader thread per child copies
// its output, a prefix before each line. Children get SIGTERM when this process dies.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"

namespace baton::tools {

struct ChildSpec {
  std::string name;               // prefix of its output lines
  std::vector<std::string> argv;  // argv[0] is the program's path
};

class Supervisor {
 public:
  Supervisor() = default;
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  // Starts a child. INTERNAL when the program cannot be started.
  absl::Status Start(ChildSpec spec);
  // Reaps dead children and restarts them with back-off (1 s, doubled up to 30 s; a child that ran
  // for a minute starts afresh). ABORTED when one has died more than five times in a row.
  absl::Status Poll();
  // True while the child of this name runs.
  bool Running(const std::string& name) const;
  // SIGTERM to all, newest first; SIGKILL to what is left after `patience`.
  void StopAll(std::chrono::milliseconds patience);

 private:
  struct Child {
    ChildSpec spec;
    pid_t pid = -1;
    int failures = 0;
    std::chrono::steady_clock::time_point started;
    std::chrono::steady_clock::time_point restart_at;
    std::thread reader;
  };
  absl::Status Launch(Child& child);
  std::vector<std::unique_ptr<Child>> children_;
};

}  // namespace baton::tools
