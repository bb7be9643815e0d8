#include "prefill_node/code_spill.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "common/base/fault.h"
#include "common/base/logging.h"
#include "common/base/replace_file.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"

namespace baton {
namespace {

namespace fs = std::filesystem;

// Codes tell of prompts: nobody else reads them.
constexpr unsigned kFileMode = 0600;
constexpr std::string_view kPartSuffix = ".part";

absl::Status FileError(const std::string& path, int error) {
  const std::string message = Cat(path, ": ", std::strerror(error));
  switch (error) {
    case ENOENT:
      return absl::NotFoundError(message);
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return absl::ResourceExhaustedError(message);
    default:
      return absl::UnavailableError(message);
  }
}

absl::Status RemoveFile(const std::string& path) {
  if (unlink(path.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
  return FileError(path, errno);
}

// A file of exactly that many bytes, which then counts as used now.
absl::StatusOr<std::string> ReadFile(const std::string& path, std::size_t bytes) {
  // Non-blocking, so that a FIFO at the path is refused instead of waited for.
  const Descriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (fd.get() < 0) return FileError(path, errno);
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return FileError(path, errno);
  if (!S_ISREG(info.st_mode) || info.st_size != static_cast<off_t>(bytes)) {
    return absl::DataLossError(
        Cat(path, ": ", info.st_size, " bytes, should be a file of ", bytes));
  }
  std::string content(bytes, '\0');
  for (std::size_t at = 0; at < bytes;) {
    const ssize_t got = read(fd.get(), content.data() + at, bytes - at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError(path, errno);
    if (got == 0) return absl::DataLossError(Cat(path, ": shortened while it was read"));
    at += static_cast<std::size_t>(got);
  }
  (void)futimens(fd.get(), nullptr);  // the order after a restart is worth no error
  return content;
}

// -1 and errno on an error.
int LockFolder(const std::string& folder) {
  const int fd = open((folder + "/.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, kFileMode);
  if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

}  // namespace

CodeSpill::CodeSpill(CodeSpillOptions options, int lock, MetricRegistry& metrics)
    : options_(std::move(options)),
      lock_(lock),
      hits_(metrics.AddCounter("baton_code_spill_hits_tokens_total",
                               "Tokens whose codes the code store's memory lacked and the spill "
                               "had.")),
      written_(metrics.AddCounter("baton_code_spill_written_tokens_total",
                                  "Tokens whose codes were written to the spill.")),
      evictions_(metrics.AddCounter("baton_code_spill_evicted_tokens_total",
                                    "Tokens whose files made room for others.")),
      dropped_(metrics.AddCounterFamily("baton_code_spill_dropped_tokens_total",
                                        "Tokens whose codes were forgotten instead of spilled.",
                                        {"reason"})),
      bad_files_(metrics.AddCounter("baton_code_spill_bad_files_total",
                                    "Files that were not as they were written.")),
      file_gauge_(metrics.AddGaugeCallback("baton_code_spill_bytes", "Files of the spill.",
                                           [this] { return double(file_bytes()); })),
      queue_gauge_(metrics.AddGaugeCallback("baton_code_spill_queue_bytes",
                                            "Codes in memory on the way to the spill.",
                                            [this] { return double(queued_bytes()); })) {}

absl::StatusOr<std::unique_ptr<CodeSpill>> CodeSpill::Open(CodeSpillOptions options,
                                                           MetricRegistry& metrics) {
  std::error_code error;
  if (fs::create_directories(options.folder, error)) {
    fs::permissions(options.folder, fs::perms::owner_all, error);
  }
  if (error) return absl::UnavailableError(Cat(options.folder, ": ", error.message()));
  const int lock = LockFolder(options.folder);
  if (lock < 0 && errno == EWOULDBLOCK) {
    return absl::FailedPreconditionError(Cat(options.folder, ": another process uses it"));
  }
  if (lock < 0) {
    return absl::UnavailableError(Cat(options.folder, ": cannot be used: ", std::strerror(errno)));
  }
  std::unique_ptr<CodeSpill> spill(new CodeSpill(std::move(options), lock, metrics));
  BATON_RETURN_IF_ERROR(spill->TakeUpFiles());
  spill->writer_ = std::thread([s = spill.get()] { s->RunWriter(); });
  return spill;
}

CodeSpill::~CodeSpill() {
  {
    MutexLock lock(mu_);
    stop_ = true;
  }
  changed_.NotifyAll();
  if (writer_.joinable()) writer_.join();
}

std::string CodeSpill::PathOf(const CodeFileKey& key) const {
  return Cat(options_.folder, "/", CodeFileName(key));
}

absl::Status CodeSpill::TakeUpFiles() {
  std::vector<std::pair<fs::file_time_type, File>> found;
  std::error_code error;
  fs::directory_iterator it(options_.folder, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    std::error_code gone;  // of one file: it is no file of ours then
    if (it->symlink_status(gone).type() != fs::file_type::regular) continue;
    std::string name = it->path().filename().string();
    const bool part = absl::EndsWith(name, AbslView(kPartSuffix));
    if (part) name.resize(name.size() - kPartSuffix.size());
    const auto key = ParseCodeFileName(name);
    if (!key) continue;
    if (part) {  // a process ended while it wrote
      BATON_RETURN_IF_ERROR(RemoveFile(it->path().string()));
      continue;
    }
    const auto bytes = static_cast<std::int64_t>(it->file_size(gone));
    const fs::file_time_type used = it->last_write_time(gone);
    if (!gone) found.emplace_back(used, File{*key, bytes});
  }
  if (error) return absl::UnavailableError(Cat(options_.folder, ": ", error.message()));
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  {
    MutexLock lock(mu_);
    for (const auto& [used, file] : found) {
      AddFile(file);
      file_bytes_ += file.bytes;
    }
  }
  BATON_RETURN_IF_ERROR(Reserve(0));
  BATON_LOG_INFO("codes of earlier times in {}: {} bytes", options_.folder, file_bytes());
  return absl::OkStatus();
}

void CodeSpill::AddFile(File file) {
  if (const auto it = index_.find(file.key); it != index_.end()) {  // written anew
    file_bytes_ -= it->second->bytes;
    files_.erase(it->second);
  }
  file.number = ++files_added_;
  files_.push_front(file);
  index_[file.key] = files_.begin();
}

void CodeSpill::Put(const BlockHash& block, const std::string& space,
                    std::shared_ptr<const BlockCodes> codes) {
  Write write{MakeCodeFileKey(block, space), block, space, std::move(codes)};
  write.bytes = static_cast<std::int64_t>(CodeFileBytes(space, write.codes->bytes()));
  bool full = false;
  {
    MutexLock lock(mu_);
    if (const auto it = index_.find(write.key); it != index_.end()) {
      files_.splice(files_.begin(), files_, it->second);
      return;
    }
    if (queued_.contains(write.key)) return;
    full = queued_bytes_ + write.bytes > options_.queue_bytes;
    if (!full) {
      queued_bytes_ += write.bytes;
      queued_[write.key] = write.codes;
      queue_.push_back(std::move(write));
    }
  }
  if (!full) {
    changed_.NotifyOne();
    return;
  }
  dropped_.With({"queue_full"}).Increment(kCodeBlockRows);
  BATON_LOG_EVERY_SEC(60, "{}: slower than codes leave memory; some are forgotten",
                      options_.folder);
}

std::shared_ptr<const BlockCodes> CodeSpill::Find(const BlockHash& block, const std::string& space,
                                                  const CodeCut& whole) {
  const CodeFileKey key = MakeCodeFileKey(block, space);
  std::shared_ptr<const BlockCodes> waiting;
  File file;
  {
    MutexLock lock(mu_);
    if (const auto it = queued_.find(key); it != queued_.end()) {
      waiting = it->second;
    } else if (const auto known = index_.find(key); known != index_.end()) {
      files_.splice(files_.begin(), files_, known->second);
      file = *known->second;
    } else {
      return nullptr;
    }
  }
  if (waiting) {
    hits_.Increment(kCodeBlockRows);
    return waiting;
  }
  auto codes = std::make_shared<BlockCodes>(whole);
  const auto content = ReadFile(PathOf(key), CodeFileBytes(space, codes->bytes()));
  absl::Status outcome = content.status();
  if (content.ok()) {
    const auto bytes = ParseCodeFile(*content, block, space, codes->bytes());
    outcome = bytes.status();
    if (bytes.ok()) std::memcpy(codes->data(), bytes->data(), bytes->size());
  }
  if (outcome.ok()) {
    hits_.Increment(kCodeBlockRows);
    return codes;
  }
  // Having no descriptor left says nothing about the file.
  const bool dropped = !absl::IsResourceExhausted(outcome) && Drop(file);
  if (dropped) bad_files_.Increment();
  if (dropped || absl::IsResourceExhausted(outcome)) {
    BATON_LOG_EVERY_SEC(10, "spilled codes {} are of no use: {}", CodeFileName(key), outcome);
  }
  return nullptr;
}

bool CodeSpill::Drop(const File& file) {
  {
    MutexLock lock(mu_);
    const auto it = index_.find(file.key);
    if (it == index_.end() || it->second->number != file.number) return false;
    file_bytes_ -= file.bytes;
    files_.erase(it->second);
    index_.erase(it);
  }
  if (absl::Status s = RemoveFile(PathOf(file.key)); !s.ok()) {
    BATON_LOG_EVERY_SEC(10, "a bad file stays: {}", s);
  }
  return true;
}

void CodeSpill::RunWriter() {
  for (;;) {
    Write write;
    {
      MutexLock lock(mu_);
      changed_.Wait(mu_, [this]() REQUIRES(mu_) { return stop_ || !queue_.empty(); });
      if (queue_.empty()) return;
      write = std::move(queue_.front());
      queue_.pop_front();
    }
    if (absl::Status s = WriteFile(write); s.ok()) {
      written_.Increment(kCodeBlockRows);
    } else {
      dropped_.With({"write_failed"}).Increment(kCodeBlockRows);
      BATON_LOG_EVERY_SEC(60, "codes cannot be spilled and are forgotten: {}", s);
    }
    MutexLock lock(mu_);
    queued_.erase(write.key);
    queued_bytes_ -= write.bytes;
  }
}

absl::Status CodeSpill::WriteFile(const Write& write) {
  BATON_RETURN_IF_ERROR(BATON_FAULT_POINT("code_spill.write"));
  BATON_RETURN_IF_ERROR(Reserve(write.bytes));
  // Not synced: a file that a power cut tears is found by its checksum.
  absl::Status written = ReplaceFile(
      PathOf(write.key),
      EncodeCodeFile(write.block, write.space, {write.codes->data(), write.codes->bytes()}),
      {.sync = false, .mode = kFileMode});
  MutexLock lock(mu_);
  if (written.ok()) {
    AddFile({write.key, write.bytes});
  } else {
    file_bytes_ -= write.bytes;
  }
  return written;
}

absl::Status CodeSpill::Reserve(std::int64_t bytes) {
  if (bytes > options_.capacity_bytes) {
    return absl::ResourceExhaustedError(Cat("a file of ", bytes, " bytes, over the bound of ",
                                            options_.capacity_bytes, " for all files"));
  }
  for (;;) {
    {
      MutexLock lock(mu_);
      if (file_bytes_ + bytes <= options_.capacity_bytes) {
        file_bytes_ += bytes;
        return absl::OkStatus();
      }
    }
    BATON_RETURN_IF_ERROR(RemoveOldest());
  }
}

absl::Status CodeSpill::RemoveOldest() {
  File oldest;
  {
    MutexLock lock(mu_);
    if (files_.empty()) return absl::OkStatus();  // the last one was bad and is gone
    oldest = files_.back();
    index_.erase(oldest.key);
    files_.pop_back();
  }
  absl::Status removed = RemoveFile(PathOf(oldest.key));
  if (removed.ok()) evictions_.Increment(kCodeBlockRows);
  MutexLock lock(mu_);
  if (removed.ok()) {
    file_bytes_ -= oldest.bytes;
  } else {
    AddFile(oldest);  // it still takes its place
  }
  return removed;
}

std::int64_t CodeSpill::file_bytes() const {
  MutexLock lock(mu_);
  return file_bytes_;
}

std::int64_t CodeSpill::queued_bytes() const {
  MutexLock lock(mu_);
  return queued_bytes_;
}

}  // namespace baton
