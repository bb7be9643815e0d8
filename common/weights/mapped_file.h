// A file mapped read-only into memory.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace baton {

// Movable, owns the mapping; the bytes stay at their address until destruction. The file must not
// be shortened while it is mapped (replace weights by writing a new file and renaming it).
class MappedFile {
 public:
  // Errors: NotFound, PermissionDenied or InvalidArgument (not a regular file) naming `path`.
  static absl::StatusOr<MappedFile> Open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  const std::string& path() const { return path_; }
  // Null for an empty file.
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  explicit MappedFile(std::string path) : path_(std::move(path)) {}

  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  void* reserved_ = nullptr;  // addresses around the mapping that belong to it
  size_t reserved_size_ = 0;
};

// Hints about bytes of a MappedFile, and nothing else. They change no content: what is touched
// after DoneReading comes from the file again.
void WillRead(const std::byte* data, size_t bytes);     // begin to read it from the disk
void DoneReading(const std::byte* data, size_t bytes);  // the process's memory need not hold it

// Reads a whole text file. Errors as MappedFile::Open, and InvalidArgument above `max_bytes`.
absl::StatusOr<std::string> ReadTextFile(const std::string& path, size_t max_bytes = 64 << 20);

}  // namespace baton
