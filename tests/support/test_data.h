// Where tests find data that is not in the repository. A missing file skips the test, so that
// ctest counts it:
//
//   const std::string path = SmolLm2GgufPath();
//   BATON_SKIP_WITHOUT(path);
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "gtest/gtest.h"

namespace baton {

inline std::string EnvOr(const char* name, const char* fallback) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : fallback;
}

// The shared evaluation data: environment BATON_SHARED_DATA, else ../shared/data of the project.
inline std::string SharedDataDir() { return EnvOr("BATON_SHARED_DATA", BATON_DEFAULT_SHARED_DATA); }

// SmolLM2-135M-Instruct (Q4_1): environment BATON_SMOLLM2_GGUF, else the CMake cache variable.
inline std::string SmolLm2GgufPath() {
  return EnvOr("BATON_SMOLLM2_GGUF", BATON_DEFAULT_SMOLLM2_GGUF);
}

// tests/data of the source tree.
inline std::string TestDataDir() { return BATON_TEST_DATA_DIR; }

inline std::string ReadFileOrEmpty(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace baton

#define BATON_SKIP_WITHOUT(path)                        \
  if ((path).empty() || !std::filesystem::exists(path)) \
  GTEST_SKIP() << "needs " << ((path).empty() ? "BATON_SMOLLM2_GGUF" : (path))
