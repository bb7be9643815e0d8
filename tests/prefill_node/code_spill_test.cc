#include "prefill_node/code_spill.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "common/base/fault.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/prefill_node/made_codes.h"
#include "tests/support/temp_dir.h"

namespace baton {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class CodeSpillTest : public testing::Test {
 protected:
  // Room for so many files, and as many on the way.
  void Open(std::int64_t files = 100, std::int64_t queued = 100) {
    spill_.reset();  // the folder is one spill's
    metrics_ = MetricRegistry();
    auto opened = CodeSpill::Open({.folder = folder_,
                                   .capacity_bytes = files * kMadeFileBytes,
                                   .queue_bytes = queued * kMadeFileBytes},
                                  metrics_);
    ASSERT_TRUE(opened.ok()) << opened.status();
    spill_ = *std::move(opened);
  }
  void PutBlocks(std::uint8_t from, std::uint8_t to) {
    for (std::uint8_t n = from; n <= to; ++n) spill_->Put(MadeBlock(n), "s", MadeCodes(n));
  }
  void WaitUntilWritten() {
    while (spill_->queued_bytes() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  // What is served must be what was put there.
  bool Has(std::uint8_t n) {
    const auto codes = spill_->Find(MadeBlock(n), "s", MadeCut());
    EXPECT_TRUE(codes == nullptr || AllAre(*codes, n)) << int{n};
    return codes != nullptr;
  }
  std::string FileOf(std::uint8_t n) const {
    return folder_ + "/" + CodeFileName(MakeCodeFileKey(MadeBlock(n), "s"));
  }
  void Overwrite(std::uint8_t n, const std::string& bytes) const {
    std::ofstream(FileOf(n), std::ios::binary) << bytes;
  }
  std::string Metric(const std::string& name) const {
    const std::string text = "\n" + metrics_.SerializeText();
    const std::size_t at = text.find("\nbaton_code_spill_" + name + " ");
    if (at == std::string::npos) return "none";
    const std::size_t value = text.find(' ', at) + 1;
    return text.substr(value, text.find('\n', value) - value);
  }

  const TempDir dir_;
  const std::string folder_ = dir_.File("deep/codes");
  MetricRegistry metrics_;
  std::unique_ptr<CodeSpill> spill_;
};

TEST_F(CodeSpillTest, WhatWasPutIsFoundAlsoAfterARestart) {
  Open();
  PutBlocks(1, 5);
  for (std::uint8_t n = 1; n <= 5; ++n) EXPECT_TRUE(Has(n));  // written or not
  WaitUntilWritten();
  for (std::uint8_t n = 1; n <= 5; ++n) EXPECT_TRUE(Has(n));
  EXPECT_FALSE(Has(6));
  EXPECT_EQ(spill_->Find(MadeBlock(1), "another space", MadeCut()), nullptr);
  EXPECT_EQ(Metric("hits_tokens_total"), "640");
  EXPECT_EQ(Metric("written_tokens_total"), "320");
  EXPECT_EQ(Metric("bytes"), std::to_string(5 * kMadeFileBytes));
  PutBlocks(6, 20);
  Open();
  EXPECT_EQ(spill_->file_bytes(), 20 * kMadeFileBytes);
  for (std::uint8_t n = 1; n <= 20; ++n) EXPECT_TRUE(Has(n));
  EXPECT_EQ(fs::status(FileOf(1)).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(CodeSpillTest, TheFirstOfTwoStays) {
  Open();
  spill_->Put(MadeBlock(1), "s", MadeCodes(1));
  spill_->Put(MadeBlock(1), "s", MadeCodes(2));
  WaitUntilWritten();
  spill_->Put(MadeBlock(1), "s", MadeCodes(3));
  WaitUntilWritten();
  EXPECT_TRUE(Has(1));
  EXPECT_EQ(Metric("written_tokens_total"), "64");
}

TEST_F(CodeSpillTest, TheLongestUnusedMakesRoom) {
  Open(/*files=*/3);
  PutBlocks(1, 3);
  WaitUntilWritten();
  EXPECT_TRUE(Has(1));
  spill_->Put(MadeBlock(2), "s", MadeCodes(2));  // used again, too
  for (std::uint8_t n = 4; n <= 40; ++n) {
    PutBlocks(n, n);
    WaitUntilWritten();
    EXPECT_EQ(spill_->file_bytes(), 3 * kMadeFileBytes);
    if (n == 4) {
      EXPECT_FALSE(Has(3));
      EXPECT_TRUE(Has(1) && Has(2) && Has(4));
    }
  }
  EXPECT_EQ(Metric("evicted_tokens_total"), std::to_string(37 * 64));
  std::uintmax_t bytes = 0;
  for (const auto& file : fs::directory_iterator(folder_)) bytes += file.file_size();
  EXPECT_EQ(bytes, 3u * kMadeFileBytes);
}

TEST_F(CodeSpillTest, ARestartWithLessRoomKeepsTheLatestUsed) {
  Open();
  PutBlocks(1, 4);
  spill_->Put(MadeBlock(5), "t", MadeCodes(5));
  spill_.reset();
  const auto now = fs::file_time_type::clock::now();
  for (std::uint8_t n = 1; n <= 4; ++n) {
    fs::last_write_time(FileOf(n), now - std::chrono::hours(n == 3 ? 9 : n));
  }
  Open(/*files=*/4);  // the other space's counts
  EXPECT_FALSE(Has(3));
  EXPECT_TRUE(Has(1) && Has(2) && Has(4));
  EXPECT_TRUE(AllAre(*spill_->Find(MadeBlock(5), "t", MadeCut()), 5));
  spill_.reset();
  fs::last_write_time(FileOf(4), now - std::chrono::hours(5));
  Open(/*files=*/4);
  EXPECT_TRUE(Has(4));  // to read a file is to use it
  Open(/*files=*/1);
  EXPECT_TRUE(Has(4));
  EXPECT_FALSE(Has(1) || Has(2));
}

TEST_F(CodeSpillTest, BadFilesAreDroppedAndNeverServed) {
  Open();
  PutBlocks(1, 9);
  spill_.reset();
  std::ifstream good(FileOf(9), std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(good), {}};
  ASSERT_EQ(bytes.size(), static_cast<std::size_t>(kMadeFileBytes));
  Overwrite(1, "");
  Overwrite(2, bytes.substr(0, 50));
  Overwrite(3, bytes);  // another block's
  std::string changed = bytes;
  changed[60] ^= 1;
  Overwrite(4, changed);
  Overwrite(5, std::string(bytes.size(), 'x'));
  fs::remove(FileOf(6));
  fs::create_symlink(FileOf(9), FileOf(6));  // unknown: not a file of the spill's
  Open();
  Overwrite(7, bytes.substr(0, 90));  // after the start
  fs::remove(FileOf(8));
  for (std::uint8_t n = 1; n <= 8; ++n) EXPECT_FALSE(Has(n)) << int{n};
  EXPECT_TRUE(Has(9));
  EXPECT_EQ(Metric("bad_files_total"), "7");
  EXPECT_EQ(spill_->file_bytes(), kMadeFileBytes);
  for (const std::uint8_t n : {1, 2, 3, 4, 5, 7, 8}) EXPECT_FALSE(fs::exists(FileOf(n))) << int{n};
  PutBlocks(1, 8);
  WaitUntilWritten();
  for (std::uint8_t n = 1; n <= 9; ++n) EXPECT_TRUE(Has(n)) << int{n};
}

TEST_F(CodeSpillTest, UnknownFilesAreLeftAloneAndLeftoversAreNot) {
  fs::create_directories(folder_ + "/folder.code");
  std::ofstream(folder_ + "/notes.txt") << "mine";
  std::ofstream(FileOf(1) + ".part") << "half of";
  std::ofstream(folder_ + "/other.part") << "mine";
  Open(/*files=*/1);
  PutBlocks(1, 3);
  spill_.reset();
  EXPECT_TRUE(fs::exists(folder_ + "/notes.txt"));
  EXPECT_TRUE(fs::exists(folder_ + "/other.part"));
  EXPECT_TRUE(fs::exists(folder_ + "/folder.code"));
  EXPECT_FALSE(fs::exists(FileOf(1) + ".part"));
}

TEST_F(CodeSpillTest, WhatCannotBeWrittenIsForgottenAndCounted) {
  Open();
  fs::remove_all(folder_);
  PutBlocks(1, 3);
  WaitUntilWritten();
  EXPECT_FALSE(Has(1));
  EXPECT_EQ(Metric("dropped_tokens_total{reason=\"write_failed\"}"), "192");
  EXPECT_EQ(spill_->file_bytes(), 0);
  fs::create_directories(folder_);
  PutBlocks(1, 3);
  WaitUntilWritten();
  EXPECT_TRUE(Has(1) && Has(2) && Has(3));
}

TEST_F(CodeSpillTest, NothingIsWrittenWhileTheOldestCannotGo) {
  Open(/*files=*/1);
  PutBlocks(1, 1);
  WaitUntilWritten();
  fs::remove(FileOf(1));
  fs::create_directory(FileOf(1));
  PutBlocks(2, 2);
  WaitUntilWritten();
  EXPECT_FALSE(fs::exists(FileOf(2)));
  EXPECT_EQ(spill_->file_bytes(), kMadeFileBytes);
  EXPECT_EQ(Metric("dropped_tokens_total{reason=\"write_failed\"}"), "64");
  EXPECT_FALSE(Has(1));
  EXPECT_EQ(Metric("bad_files_total"), "1");
}

TEST_F(CodeSpillTest, AFileOverTheBoundIsNotWritten) {
  Open(/*files=*/1);
  PutBlocks(1, 1);
  spill_->Put(MadeBlock(2), "a longer name", MadeCodes(2));
  WaitUntilWritten();
  EXPECT_TRUE(Has(1));
  EXPECT_EQ(Metric("dropped_tokens_total{reason=\"write_failed\"}"), "64");
}

TEST_F(CodeSpillTest, AFullQueueDropsWhatComes) {
  const ScopedFault slow("code_spill.write", {.action = Fault::Action::kDelay,
                                              .delay = std::chrono::milliseconds(200),
                                              .max_hits = 1,
                                              .error = {}});
  Open(/*files=*/100, /*queued=*/2);
  PutBlocks(1, 5);
  EXPECT_EQ(Metric("dropped_tokens_total{reason=\"queue_full\"}"), "192");
  EXPECT_EQ(Metric("queue_bytes"), std::to_string(2 * kMadeFileBytes));
  EXPECT_TRUE(Has(1) && Has(2));
  EXPECT_FALSE(Has(3));
  WaitUntilWritten();
  PutBlocks(3, 4);
  WaitUntilWritten();
  EXPECT_TRUE(Has(1) && Has(2) && Has(3) && Has(4));
}

TEST_F(CodeSpillTest, AFolderThatCannotBeUsedIsRefused) {
  dir_.Write("file", "");
  for (const char* folder : {"file", "file/below"}) {
    const auto opened = CodeSpill::Open({dir_.File(folder), 1000}, metrics_);
    EXPECT_EQ(opened.status().code(), absl::StatusCode::kUnavailable) << folder;
    EXPECT_THAT(std::string(opened.status().message()), HasSubstr(dir_.File(folder)));
  }
  Open();
  const auto second = CodeSpill::Open({folder_, 1000}, metrics_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(folder_));
}

TEST_F(CodeSpillTest, ManyPutAndLook) {
  Open(/*files=*/10, /*queued=*/20);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      for (int i = 0; i < 100; ++i) {
        const auto n = static_cast<std::uint8_t>((i * 3 + t) % 30 + 1);
        PutBlocks(n, n);
        Has(static_cast<std::uint8_t>((i * 7 + t) % 30 + 1));
        EXPECT_LE(spill_->file_bytes(), 10 * kMadeFileBytes);
        EXPECT_LE(spill_->queued_bytes(), 20 * kMadeFileBytes);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  WaitUntilWritten();
  EXPECT_EQ(Metric("bad_files_total"), "0");
}

}  // namespace
}  // namespace baton
