#include "common/weights/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "common/base/descriptor.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"

namespace baton {
namespace {

// A fault maps the pages around it, too, up to this much at aligned addresses: what is given back
// must be whole windows, or the neighbours' faults bring most of it back.
constexpr size_t kWindow = 64 << 10;

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
  MappedFile file(path);
  if (size == 0) return file;
  // Whole windows are reserved, so that Advise may round out to them.
  if (size > SIZE_MAX - 2 * kWindow) return FileError(path, "cannot map", EFBIG);
  file.reserved_size_ = (size + kWindow - 1) / kWindow * kWindow + kWindow;
  void* reserved = mmap(nullptr, file.reserved_size_, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return FileError(path, "cannot map", errno);
  file.reserved_ = reserved;
  const auto begin = (reinterpret_cast<uintptr_t>(reserved) + kWindow - 1) / kWindow * kWindow;
  void* data =
      mmap(reinterpret_cast<void*>(begin), size, PROT_READ, MAP_SHARED | MAP_FIXED, fd.get(), 0);
  if (data == MAP_FAILED) return FileError(path, "cannot map", errno);
  file.data_ = static_cast<const std::byte*>(data);
  file.size_ = size;
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      reserved_(std::exchange(other.reserved_, nullptr)),
      reserved_size_(std::exchange(other.reserved_size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(reserved_, other.reserved_);
  std::swap(reserved_size_, other.reserved_size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (reserved_ != nullptr) munmap(reserved_, reserved_size_);
}

namespace {
void Advise(const std::byte* data, size_t bytes, int advice) {
  if (bytes == 0) return;
  const auto begin = reinterpret_cast<uintptr_t>(data) / kWindow * kWindow;
  const auto end = (reinterpret_cast<uintptr_t>(data) + bytes + kWindow - 1) / kWindow * kWindow;
  // The kernel may decline; nothing depends on it.
  (void)madvise(reinterpret_cast<void*>(begin), end - begin, advice);
}
}  // namespace

void WillRead(const std::byte* data, size_t bytes) { Advise(data, bytes, MADV_WILLNEED); }
void DoneReading(const std::byte* data, size_t bytes) { Advise(data, bytes, MADV_DONTNEED); }

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
