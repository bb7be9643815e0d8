#include "common/base/replace_file.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_dir.h"

namespace baton {
namespace {

using testing::HasSubstr;

std::string Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::size_t FilesIn(const TempDir& dir) {
  const std::filesystem::directory_iterator files(dir.path());
  return static_cast<std::size_t>(std::distance(begin(files), end(files)));
}

TEST(ReplaceFileTest, TheNewContentTakesThePlaceOfTheOld) {
  const TempDir dir;
  const std::string path = dir.File("a");
  const std::string content("new\0bytes", 9);
  dir.Write("a", "the old content, which is longer");
  dir.Write("a.part", "left by a crash");
  ASSERT_TRUE(ReplaceFile(path, content).ok());
  EXPECT_EQ(Read(path), content);
  ASSERT_TRUE(ReplaceFile(path, "", {.sync = false}).ok());
  EXPECT_EQ(Read(path), "");
  EXPECT_EQ(FilesIn(dir), 1u);
}

TEST(ReplaceFileTest, ANewFileHasTheMode) {
  const TempDir dir;
  ASSERT_TRUE(ReplaceFile(dir.File("a"), "secret", {.mode = 0600}).ok());
  struct stat info;
  ASSERT_EQ(stat(dir.File("a").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777u, 0600u);
}

TEST(ReplaceFileTest, ErrorsNameThePathAndLeaveNothingBehind) {
  const TempDir dir;
  const absl::Status no_folder = ReplaceFile(dir.File("none/a"), "x");
  EXPECT_EQ(no_folder.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(no_folder.message()), HasSubstr(dir.File("none/a")));
  EXPECT_THAT(std::string(no_folder.message()), HasSubstr("No such file or directory"));
  // A folder is at the place.
  std::filesystem::create_directory(dir.File("folder"));
  const absl::Status folder = ReplaceFile(dir.File("folder"), "x");
  EXPECT_EQ(folder.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(folder.message()), HasSubstr(dir.File("folder")));
  EXPECT_EQ(FilesIn(dir), 1u);
  // A full disk.
  std::filesystem::create_symlink("/dev/full", dir.File("full.part"));
  const absl::Status full = ReplaceFile(dir.File("full"), "x");
  EXPECT_EQ(full.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(full.message()), HasSubstr("No space left on device"));
  EXPECT_EQ(FilesIn(dir), 1u);
}

TEST(ReplaceFileTest, WhoWritesToAPathOfItsOwn) {
  const TempDir dir;
  const std::string path = dir.File("a");
  const auto writes = [](const std::string& content) {
    return [content](const std::string& part) {
      std::ofstream(part) << content;
      return absl::OkStatus();
    };
  };
  ASSERT_TRUE(ReplaceFileWith(path, writes("one")).ok());
  EXPECT_EQ(Read(path), "one");
  const absl::Status failed = ReplaceFileWith(path, [&](const std::string& part) {
    (void)writes("half of")(part);
    return absl::DataLossError("it broke");
  });
  EXPECT_EQ(failed, absl::DataLossError("it broke"));
  EXPECT_THROW((void)ReplaceFileWith(path,
                                     [&](const std::string& part) -> absl::Status {
                                       (void)writes("half of")(part);
                                       throw std::runtime_error("it broke");
                                     }),
               std::runtime_error);
  EXPECT_EQ(Read(path), "one");
  EXPECT_EQ(FilesIn(dir), 1u);
  // It wrote nothing.
  EXPECT_EQ(ReplaceFileWith(path, [](const std::string&) { return absl::OkStatus(); }).code(),
            absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace baton
