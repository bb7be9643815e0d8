#include "tools/supervisor.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"

namespace baton::tools {
namespace {

// Copies lines from `fd` to stderr until the other end is closed.
void CopyLines(int fd, std::string name) {
  FILE* in = fdopen(fd, "r");
  if (in == nullptr) {
    close(fd);
    return;
  }
  char* line = nullptr;
  size_t capacity = 0;
  ssize_t n;
  while ((n = getline(&line, &capacity, in)) > 0) {
    const std::string out = Cat("[", name, "] ", std::string_view(line, static_cast<size_t>(n)));
    // One write per line, so that children's lines never mix.
    if (write(2, out.data(), out.size()) < 0) break;
  }
  free(line);
  fclose(in);
}

// Ends what a child that is gone has left behind: its pipe would stay open, and its reader with it.
void EndGroup(pid_t leader) { kill(-leader, SIGKILL); }

std::string DescribeExit(int status) {
  if (WIFSIGNALED(status)) return absl::StrCat("was killed by signal ", WTERMSIG(status));
  return absl::StrCat("exited with code ", WEXITSTATUS(status));
}

}  // namespace

absl::Status Supervisor::Launch(Child& child) {
  int out[2];
  if (pipe2(out, O_CLOEXEC) != 0) return absl::InternalError(std::strerror(errno));
  std::vector<char*> argv;
  for (std::string& arg : child.spec.argv) argv.push_back(arg.data());
  argv.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) {
    close(out[0]);
    close(out[1]);
    return absl::InternalError(absl::StrCat("fork: ", std::strerror(errno)));
  }
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(1);
    // The terminal's Ctrl-C must reach only the supervisor, which then drains in order.
    setpgid(0, 0);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    dup2(out[1], 1);
    dup2(out[1], 2);
    execv(argv[0], argv.data());
    dprintf(2, "cannot start %s: %s\n", argv[0], std::strerror(errno));
    _exit(127);
  }
  setpgid(pid, pid);  // as the child does; whoever comes first
  close(out[1]);
  if (child.reader.joinable()) child.reader.join();
  child.reader = std::thread(CopyLines, out[0], child.spec.name);
  child.pid = pid;
  child.started = std::chrono::steady_clock::now();
  return absl::OkStatus();
}

absl::Status Supervisor::Start(ChildSpec spec) {
  if (access(spec.argv.at(0).c_str(), X_OK) != 0) {
    return absl::InternalError(
        absl::StrCat("cannot start ", spec.argv[0], ": ", std::strerror(errno)));
  }
  auto child = std::make_unique<Child>();
  child->spec = std::move(spec);
  BATON_RETURN_IF_ERROR(Launch(*child));
  children_.push_back(std::move(child));
  return absl::OkStatus();
}

absl::Status Supervisor::Poll() {
  const auto now = std::chrono::steady_clock::now();
  for (auto& child : children_) {
    if (child->pid > 0) {
      int status = 0;
      if (waitpid(child->pid, &status, WNOHANG) != child->pid) continue;
      EndGroup(std::exchange(child->pid, -1));
      if (now - child->started > std::chrono::minutes(1)) child->failures = 0;
      ++child->failures;
      if (child->failures > 5) {
        return absl::AbortedError(
            absl::StrCat(child->spec.name, " ", DescribeExit(status), ", six times in a row"));
      }
      const auto wait = std::chrono::seconds(std::min(30, 1 << (child->failures - 1)));
      child->restart_at = now + wait;
      dprintf(2, "[up] %s %s; starting it again in %lld s\n", child->spec.name.c_str(),
              DescribeExit(status).c_str(), static_cast<long long>(wait.count()));
    } else if (now >= child->restart_at) {
      BATON_RETURN_IF_ERROR(Launch(*child));
    }
  }
  return absl::OkStatus();
}

bool Supervisor::Running(const std::string& name) const {
  for (const auto& child : children_) {
    if (child->spec.name == name) return child->pid > 0;
  }
  return false;
}

void Supervisor::StopAll(std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  for (size_t i = children_.size(); i-- > 0;) {
    if (children_[i]->pid > 0) kill(children_[i]->pid, SIGTERM);
  }
  for (auto& child : children_) {
    while (child->pid > 0) {
      int status = 0;
      const pid_t got = waitpid(child->pid, &status, WNOHANG);
      if (got == child->pid || got < 0) {
        EndGroup(std::exchange(child->pid, -1));
      } else if (std::chrono::steady_clock::now() > deadline) {
        dprintf(2, "[up] %s did not stop in time: killed\n", child->spec.name.c_str());
        kill(child->pid, SIGKILL);
        waitpid(child->pid, &status, 0);
        EndGroup(std::exchange(child->pid, -1));
      } else {
        usleep(20'000);
      }
    }
    if (child->reader.joinable()) child->reader.join();
  }
}

Supervisor::~Supervisor() { StopAll(std::chrono::seconds(5)); }

}  // namespace baton::tools
