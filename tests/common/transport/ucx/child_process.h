// Starts and drives transport_ucx_child.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/transport/ucx/ucx_transport.h"

namespace baton::test {

struct ChildReport {
  int good = 0, bad = 0, failed = 0, refused = 0, pending = 0, refused_by_transport = 0, peers = 0;
};

class Child {
 public:
  explicit Child(const std::string& tls, const UcxOptions& options = {}) {
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) abort();
    const std::string path =
        (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "transport_ucx_child")
            .string();
    std::vector<std::string> args = {path, tls};
    for (absl::Duration d : {options.keepalive, options.heartbeat, options.progress_deadline}) {
      args.push_back(std::to_string(absl::ToInt64Milliseconds(d)));
    }
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    pid_ = vfork();
    if (pid_ == 0) {
      dup2(in[0], 0);
      dup2(out[1], 1);
      execv(argv[0], argv.data());
      _exit(127);
    }
    close(in[0]);
    close(out[1]);
    to_ = in[1];
    from_ = fdopen(out[0], "r");
    auto decoded = HexDecode(ReadLine());
    if (decoded.ok()) address_ = *decoded;
    EXPECT_FALSE(address_.empty());
  }
  ~Child() {
    Kill();
    close(to_);
    fclose(from_);
  }
  Child(const Child&) = delete;

  const std::string& address() const { return address_; }

  std::string Ask(const std::string& command) {
    const std::string line = command + "\n";
    if (write(to_, line.data(), line.size()) < 0) return "";
    return ReadLine();
  }
  ChildReport Report() {
    ChildReport r;
    std::istringstream(Ask("report")) >> r.good >> r.bad >> r.failed >> r.refused >> r.pending >>
        r.refused_by_transport >> r.peers;
    return r;
  }
  void Signal(int signal) { kill(pid_, signal); }
  void Kill() {
    if (pid_ > 0) Signal(SIGKILL);
    Reap();
  }
  // Shuts down in order.
  void Exit() {
    Ask("exit");
    Reap();
  }

 private:
  void Reap() {
    if (pid_ > 0) waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  std::string ReadLine() {
    char buffer[8192];
    if (fgets(buffer, sizeof(buffer), from_) == nullptr) return "";
    std::string line = buffer;
    while (!line.empty() && line.back() == '\n') line.pop_back();
    return line;
  }

  pid_t pid_ = 0;
  int to_ = -1;
  FILE* from_ = nullptr;
  std::string address_;
};

// Polls until `done` or `limit`; returns done().
template <typename F>
bool Eventually(F done, absl::Duration limit = absl::Seconds(10)) {
  const absl::Time until = absl::Now() + limit;
  while (!done()) {
    if (absl::Now() > until) return false;
    usleep(2000);
  }
  return true;
}

}  // namespace baton::test
