// Every op of cuda_ops.h against the CPU's, with the tolerances of kernels/README.md.
//
//   cuda_check [--list] [--quick] [--only OP] [--json FILE]
//
// Each check runs twice and must give the same bits (on the emulator the second time with the
// threads in reversed order). Exit status: 0 all passed, 1 something failed, 77 no CUDA device.
#include <algorithm>
#include <string>

#include "tests/kernels/cuda/check.h"

namespace {

using baton::check::Check;
using baton::check::Report;

constexpr int kNoDevice = 77;

std::vector<Check> AllChecks() {
  std::vector<Check> all = baton::check::ElementwiseChecks();
  for (auto* more : {baton::check::AttentionChecks, baton::check::CodeChecks}) {
    for (const Check& c : more()) all.push_back(c);
  }
  return all;
}

Report RunTwice(const Check& check) {
  Report first, second;
  check.run(first);
#if defined(BATON_CUDA_EMULATED)
  emulator::SetOrder(emulator::Order::kReversed);
#endif
  check.run(second);
#if defined(BATON_CUDA_EMULATED)
  emulator::SetOrder(emulator::Order::kForward);
#endif
  if (first.hash() != second.hash()) first.Fail("the second run gave other bits");
  return first;
}

int RunAll(const std::string& only, std::FILE* json) {
  int failed = 0, ran = 0;
  std::printf("%-18s %-5s %6s  %-22s %s\n", "op", "dtype", "cases", "worst error/tolerance",
              "result");
  for (const Check& c : AllChecks()) {
    if (!only.empty() && only != c.op) continue;
    const Report r = RunTwice(c);
    const bool passed = r.failures() == 0;
    std::printf("%-18s %-5s %6d  %-22.3f %s\n", c.op, c.dtype, r.cases(), r.worst(),
                passed ? "passed" : "FAILED");
    std::fflush(stdout);
    if (json != nullptr) {
      std::fprintf(json,
                   "%s\n    {\"op\": \"%s\", \"dtype\": \"%s\", \"cases\": %d, \"worst\": %.4f, "
                   "\"passed\": %s}",
                   ran == 0 ? "" : ",", c.op, c.dtype, r.cases(), r.worst(),
                   passed ? "true" : "false");
    }
    failed += passed ? 0 : 1;
    ++ran;
  }
  if (ran == 0) std::fprintf(stderr, "cuda_check: no op is called %s\n", only.c_str());
  return failed > 0 || ran == 0 ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::string only, json_path;
  bool list = false;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--list") {
      list = true;
    } else if (arg == "--quick") {
      baton::check::Quick() = true;
    } else if (arg == "--only" && i + 1 < argc) {
      only = argv[++i];
    } else if (arg == "--json" && i + 1 < argc) {
      json_path = argv[++i];
    } else {
      std::fprintf(stderr, "usage: cuda_check [--list] [--quick] [--only OP] [--json FILE]\n");
      return 2;
    }
  }
  if (list) {
    for (const Check& c : AllChecks()) std::printf("%s %s\n", c.op, c.dtype);
    return 0;
  }
  if (baton::cuda::DeviceCount() == 0) {
    std::printf("cuda_check: skipped, it needs a CUDA device and there is none\n");
    return kNoDevice;
  }
  std::FILE* json = nullptr;
  if (!json_path.empty()) {
    json = std::fopen(json_path.c_str(), "w");
    if (json == nullptr) {
      std::perror(json_path.c_str());
      return 2;
    }
    std::fprintf(json, "{\"checks\": [");
  }
  const int code = RunAll(only, json);
  if (json != nullptr) {
    std::fprintf(json, "\n]}\n");
    std::fclose(json);
  }
  return code;
}
