// The 137 hostile files of the shared evaluation data, each with what must happen to it.
#include <fstream>

#include "common/tokenizer/tokenizer.h"
#include "common/weights/gguf.h"
#include "common/weights/model_source.h"
#include "common/weights/safetensors.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/temp_dir.h"
#include "tests/support/test_data.h"

namespace baton {
namespace {

using Json = nlohmann::json;

// Reads every tensor byte, so that a sanitizer sees a wrong pointer.
unsigned Touch(const std::vector<TensorView>& tensors) {
  unsigned sum = 0;
  for (const TensorView& view : tensors) {
    for (size_t i = 0; i < view.nbytes; ++i) sum += static_cast<unsigned>(view.data[i]);
  }
  return sum;
}

absl::Status OpenContainer(const std::string& path, bool gguf) {
  if (gguf) {
    const auto file = GgufFile::Open(path);
    if (file.ok()) Touch((*file)->tensors());
    return file.status();
  }
  const auto file = SafetensorsFile::Open(path);
  if (file.ok()) Touch((*file)->tensors());
  return file.status();
}

TEST(MalformedTest, EveryFileGetsItsVerdict) {
  const std::string root = SharedDataDir() + "/malformed/";
  BATON_SKIP_WITHOUT(root + "cases.jsonl");
  std::ifstream in(root + "cases.jsonl");
  int files = 0;
  for (std::string line; std::getline(in, line); ++files) {
    const Json row = Json::parse(line);
    const std::string path = root + row["file"].get<std::string>();
    const std::string expect = row["expect"];
    const bool gguf = row["format"] == "gguf";
    const absl::Status status = OpenContainer(path, gguf);
    if (expect == "accept" || expect == "reject_model") {
      EXPECT_TRUE(status.ok()) << path << ": " << status;
    } else if (expect == "reject" || expect == "loader_limit") {
      EXPECT_FALSE(status.ok()) << path;
    }
    if (!status.ok()) {
      EXPECT_NE(status.message().find(path), absl::string_view::npos) << status;
      EXPECT_LT(status.message().size(), 4096u) << path;
    }
    if (gguf) {
      EXPECT_FALSE(ModelSource::Open(path).ok()) << path;  // none of them is a whole model
    }
  }
  EXPECT_EQ(files, 137);
}

TEST(MalformedTest, EveryCutOfAValidFileIsRefused) {
  const std::string root = SharedDataDir() + "/malformed/";
  BATON_SKIP_WITHOUT(root + "cases.jsonl");
  const TempDir dir;
  const std::string cut = dir.File("cut.bin");
  for (const std::string name : {"gguf/ok_two_tensors.bin", "safetensors/ok_minimal.bin"}) {
    const std::string whole = ReadFileOrEmpty(root + name);
    for (size_t n = 0; n < whole.size(); ++n) {
      // The last tensor ends before the padding of the GGUF file.
      if (name.starts_with("gguf") && n >= whole.size() - 32) break;
      std::ofstream(cut, std::ios::binary | std::ios::trunc) << whole.substr(0, n);
      EXPECT_FALSE(OpenContainer(cut, name.starts_with("gguf")).ok()) << name << " " << n;
    }
  }
}

TEST(MalformedTest, BadVocabulariesAreRefused) {
  const std::string root = SharedDataDir() + "/malformed/gguf/";
  BATON_SKIP_WITHOUT(root + "ok_empty.bin");
  for (const char* name : {"model_token_types_short", "model_scores_short",
                           "model_bos_out_of_range", "model_merge_no_space"}) {
    const auto file = GgufFile::Open(root + name + ".bin");
    ASSERT_TRUE(file.ok()) << file.status();
    const auto vocab = ReadGgufVocab(**file);
    if (!vocab.ok()) continue;
    EXPECT_FALSE(Tokenizer::FromGguf(*vocab).ok()) << name;
  }
}

TEST(MalformedTest, MissingFileAndFolder) {
  EXPECT_EQ(GgufFile::Open("/nonexistent/x.gguf").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(GgufFile::Open("/").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SafetensorsFile::Open("/dev/null").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace baton
