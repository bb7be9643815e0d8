#include "common/base/replace_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "common/base/descriptor.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"

namespace baton {
namespace {

absl::Status FileError(const std::string& path, std::string_view doing) {
  return absl::UnavailableError(Cat(path, ": cannot be ", doing, ": ", std::strerror(errno)));
}

// Removes the file, unless it has been renamed.
class Part {
 public:
  explicit Part(const std::string& path) : path_(path + ".part") {}
  ~Part() {
    if (!renamed_) unlink(path_.c_str());
  }
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

  const std::string& path() const { return path_; }
  absl::Status RenameTo(const std::string& path) {
    if (std::rename(path_.c_str(), path.c_str()) != 0) return FileError(path, "replaced");
    renamed_ = true;
    return absl::OkStatus();
  }

 private:
  const std::string path_;
  bool renamed_ = false;
};

absl::Status WriteAll(int fd, const std::string& path, std::string_view content) {
  while (!content.empty()) {
    const ssize_t written = write(fd, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return FileError(path, "written");
    content.remove_prefix(static_cast<std::size_t>(written));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReplaceFile(const std::string& path, std::string_view content,
                         ReplaceFileOptions options) {
  Part part(path);
  {
    const Descriptor fd(
        open(part.path().c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, options.mode));
    if (fd.get() < 0) return FileError(part.path(), "opened");
    BATON_RETURN_IF_ERROR(WriteAll(fd.get(), part.path(), content));
    if (options.sync && fsync(fd.get()) != 0) return FileError(part.path(), "synced");
  }
  return part.RenameTo(path);
}

absl::Status ReplaceFileWith(const std::string& path,
                             const std::function<absl::Status(const std::string& part)>& write) {
  Part part(path);
  BATON_RETURN_IF_ERROR(write(part.path()));
  {
    const Descriptor fd(open(part.path().c_str(), O_RDONLY | O_CLOEXEC));
    if (fd.get() < 0) return FileError(part.path(), "opened");
    if (fsync(fd.get()) != 0) return FileError(part.path(), "synced");
  }
  return part.RenameTo(path);
}

}  // namespace baton
