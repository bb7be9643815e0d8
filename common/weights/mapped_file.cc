#include "common/weights/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"

namespace baton {
namespace {

absl::Status FileError(const std::string& path, std::string_view doing, int error) {
  const std::string message = Cat(path, ": ", doing, ": ", std::strerror(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(message);
    default:
      return absl::InvalidArgumentError(message);
  }
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

}  // namespace

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  // Non-blocking, so that a FIFO at the path is refused instead of waited for.
  const Descriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) return FileError(path, "cannot open", errno);
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return FileError(path, "cannot stat", errno);
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(Cat(path, ": not a regular file"));
  }
  const auto size = static_cast<size_t>(info.st_size);
  if (size == 0) return MappedFile(path, nullptr, 0);
  void* data = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return FileError(path, "cannot map", errno);
  return MappedFile(path, static_cast<const std::byte*>(data), size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

absl::StatusOr<std::string> ReadTextFile(const std::string& path, size_t max_bytes) {
  BATON_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  if (file.size() > max_bytes) {
    return absl::InvalidArgumentError(
        Cat(path, ": ", file.size(), " bytes, at most ", max_bytes, " allowed"));
  }
  if (file.size() == 0) return std::string();
  return std::string(reinterpret_cast<const char*>(file.data()), file.size());
}

}  // namespace baton
