// Loading takes little more memory than what stays.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "common/base/ids.h"
#include "tests/common/model/model_fixture.h"
#include "tests/support/sanitized.h"
#include "tests/support/test_data.h"
#include "tests/support/tiny_model.h"

namespace baton {
namespace {

namespace fs = std::filesystem;

struct Memory {
  double before = 0;    // MiB, VmRSS
  double peak = 0;      // MiB, VmHWM
  double resident = 0;  // MiB, VmRSS with the model loaded and its files closed
  double weights = 0;   // MiB
};

double StatusMiB(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key + ":")) return std::stod(line.substr(key.size() + 1)) / 1024;
  }
  return 0;
}

// In a process of its own, whose peak is that of this load alone.
Memory LoadInChild(const std::string& path, WeightDType dtype) {
  int pipe_fds[2];
  if (pipe(pipe_fds) != 0) throw std::runtime_error("pipe");
  const pid_t pid = fork();
  if (pid == 0) {
    Memory m;
    const auto executor = MakeThreadPool(2);
    m.before = StatusMiB("VmRSS");
    const auto model = LoadModel(path, *executor, dtype);
    m.peak = StatusMiB("VmHWM");
    m.resident = StatusMiB("VmRSS");
    m.weights = static_cast<double>(model->weight_bytes()) / (1 << 20);
    const bool written = write(pipe_fds[1], &m, sizeof(m)) == sizeof(m);
    _exit(written ? 0 : 1);
  }
  Memory m;
  close(pipe_fds[1]);
  const bool got = read(pipe_fds[0], &m, sizeof(m)) == sizeof(m);
  close(pipe_fds[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  if (!got || status != 0) throw std::runtime_error("the child failed");
  return m;
}

void ExpectLittleMore(const std::string& what, const std::string& path, WeightDType dtype) {
  const Memory m = LoadInChild(path, dtype);
  std::printf("%s as %s: peak %.1f MiB, stays %.1f MiB (%.2f x), weights %.1f MiB\n", what.c_str(),
              WeightDTypeName(dtype), m.peak, m.resident, m.peak / m.resident, m.weights);
  EXPECT_GE(m.resident, m.weights);
  EXPECT_LE(m.peak, 1.2 * m.resident);
  // What stays is the weights: code, allocator and tokenizer-free bookkeeping beside them.
  EXPECT_LE(m.resident, m.weights + 48);
}

TEST(LoadMemory, SmolLm2) {
  if (BATON_SANITIZED) GTEST_SKIP() << "sanitizers have memory of their own";
  const std::string path = SmolLm2GgufPath();
  BATON_SKIP_WITHOUT(path);
  for (const auto& [name, dtype] : WeightDTypeNames()) {
    ExpectLittleMore("SmolLM2 GGUF", path, dtype);
  }
}

// A small file stays small.
TEST(LoadMemory, QuantisedAsStored) {
  if (BATON_SANITIZED) GTEST_SKIP() << "sanitizers have memory of their own";
  const std::string path = SmolLm2GgufPath();
  BATON_SKIP_WITHOUT(path);
  const Memory m = LoadInChild(path, WeightDType::kFile);
  const double file = static_cast<double>(fs::file_size(path)) / (1 << 20);
  std::printf("file %.1f MiB, resident with the process %.1f MiB, before loading %.1f MiB\n", file,
              m.resident, m.before);
  EXPECT_LE(m.resident - m.before, 1.3 * file);
}

TEST(LoadMemory, HuggingFaceFolder) {
  if (BATON_SANITIZED) GTEST_SKIP() << "sanitizers have memory of their own";
  const fs::path dir = fs::temp_directory_path() / ("baton_memory_" + HexId(RandomId64()));
  // 190 MB of fp32, most of it in the two matrices of the vocabulary.
  WriteTinyLlama(dir, {.layers = 8,
                       .hidden = 768,
                       .heads = 12,
                       .kv_heads = 4,
                       .head_dim = 64,
                       .ffn = 1536,
                       .vocab = 12000,
                       .tokenizer = false});
  ExpectLittleMore("folder", dir.string(), WeightDType::kF32);
  ExpectLittleMore("folder", dir.string(), WeightDType::kBF16);
  fs::remove_all(dir);
}

}  // namespace
}  // namespace baton
