#include "router/route/asset_cache.h"

#include <grpcpp/client_context.h>

#include <type_traits>
#include <utility>

#include "absl/time/clock.h"
#include "common/base/logging.h"
#include "common/base/strings.h"
#include "common/prefix_hash/space.h"
#include "common/rpc/call_context.h"
#include "common/rpc/client_stream.h"

namespace baton {
namespace {

constexpr absl::Duration kFetchTimeout = absl::Seconds(30);
// More digests than any cluster has models; a bound all the same.
constexpr size_t kMaxEntries = 256;

absl::StatusOr<std::shared_ptr<const Tokenizer>> ParseTokenizer(const std::string& digest,
                                                                const std::string& data) {
  auto tokenizer = Tokenizer::FromJson(data);
  if (!tokenizer.ok()) {
    return absl::FailedPreconditionError(
        Cat("tokenizer ", digest, ": ", tokenizer.status().message()));
  }
  // Named by its bytes or by what decides the ids; both are digests of content.
  if (ContentDigest(data) != digest && (*tokenizer)->digest() != digest) {
    return absl::FailedPreconditionError(
        Cat("tokenizer ", digest, ": the data received has digest ", ContentDigest(data)));
  }
  return std::shared_ptr<const Tokenizer>(*std::move(tokenizer));
}

absl::StatusOr<std::shared_ptr<const ChatTemplate>> ParseTemplate(const std::string& digest,
                                                                  const std::string& data) {
  if (ContentDigest(data) != digest) {
    return absl::FailedPreconditionError(
        Cat("chat template ", digest, ": the data received has digest ", ContentDigest(data)));
  }
  // A node whose configuration overrides the template sends its name.
  auto chat = ChatTemplate::ByName(data);
  if (!chat.ok()) chat = ChatTemplate::Recognise(data);
  if (!chat.ok()) return absl::FailedPreconditionError(std::string(chat.status().message()));
  return std::make_shared<const ChatTemplate>(*std::move(chat));
}

template <typename T>
absl::StatusOr<std::shared_ptr<const T>> ParseAsset(const std::string& digest,
                                                    const std::string& data) {
  if constexpr (std::is_same_v<T, Tokenizer>) {
    return ParseTokenizer(digest, data);
  } else {
    return ParseTemplate(digest, data);
  }
}

}  // namespace

struct AssetCache::Fetch {
  using Stream = ClientStream<v1::AssetChunk>;
  std::string digest;
  std::vector<std::shared_ptr<Node>> sources;
  // Guarded by the cache's lock.
  size_t next = 0;
  std::shared_ptr<Stream> stream;
  // Of the running attempt only.
  std::string data;  // of the source being asked
  bool too_large = false;
  absl::Status last = absl::UnavailableError("no decode node is reachable");
  std::function<void(absl::StatusOr<std::string>)> done;
};

AssetCache::~AssetCache() {
  Stop();
  MutexLock lock(mu_);
  idle_.Wait(mu_, [this]() REQUIRES(mu_) { return fetching_ == 0; });
}

void AssetCache::Stop() {
  std::vector<std::shared_ptr<Fetch::Stream>> streams;
  {
    MutexLock lock(mu_);
    stopped_ = true;
    for (const auto& fetch : fetches_) {
      if (fetch->stream) streams.push_back(fetch->stream);
    }
  }
  for (const auto& stream : streams) stream->Cancel();
}

template <typename T>
AssetCache::Table<T>& AssetCache::TableOf() {
  if constexpr (std::is_same_v<T, Tokenizer>) {
    return tokenizers_;
  } else {
    return templates_;
  }
}

bool AssetCache::HasTokenizer(const std::string& digest) const {
  MutexLock lock(mu_);
  const auto it = tokenizers_.find(digest);
  return it != tokenizers_.end() && it->second.value != nullptr;
}

void AssetCache::GetTokenizer(const std::string& digest, std::vector<std::shared_ptr<Node>> sources,
                              Done<Tokenizer> done) {
  Get<Tokenizer>(digest, std::move(sources), std::move(done));
}

void AssetCache::GetChatTemplate(const std::string& digest,
                                 std::vector<std::shared_ptr<Node>> sources,
                                 Done<ChatTemplate> done) {
  Get<ChatTemplate>(digest, std::move(sources), std::move(done));
}

template <typename T>
void AssetCache::Get(const std::string& digest, std::vector<std::shared_ptr<Node>> sources,
                     Done<T> done) {
  std::shared_ptr<const T> value;
  bool start = false;
  {
    MutexLock lock(mu_);
    Table<T>& table = TableOf<T>();
    const auto it = table.find(digest);
    if (it != table.end() && it->second.value != nullptr) {
      value = it->second.value;
    } else {
      if (it == table.end()) {
        for (auto old = table.begin(); old != table.end() && table.size() >= kMaxEntries;) {
          old = old->second.value != nullptr ? table.erase(old) : std::next(old);
        }
        start = true;
        ++fetching_;
      }
      table[digest].waiters.push_back(std::move(done));
    }
  }
  if (value) return done(std::move(value));  // NOLINT(bugprone-use-after-move): did not wait
  if (!start) return;
  auto fetch = std::make_shared<Fetch>();
  fetch->digest = digest;
  fetch->sources = std::move(sources);
  fetch->done = [this, digest](absl::StatusOr<std::string> data) {
    // Reading a tokenizer takes a while: not on gRPC's thread.
    executor_.Post(
        [this, digest, data = std::move(data)]() mutable { Finish<T>(digest, std::move(data)); });
  };
  {
    MutexLock lock(mu_);
    fetches_.insert(fetch);
  }
  FetchFrom(fetch);
}

void AssetCache::FetchFrom(const std::shared_ptr<Fetch>& fetch) {
  std::shared_ptr<Node> node;
  size_t attempt = 0;
  {
    MutexLock lock(mu_);
    fetch->stream.reset();
    if (stopped_) {
      fetch->last = absl::UnavailableError("the router is shutting down");
    } else if (fetch->next < fetch->sources.size()) {
      node = fetch->sources[fetch->next];
      attempt = ++fetch->next;
    }
  }
  if (node == nullptr) return EndFetch(fetch, fetch->last);
  fetch->data.clear();
  fetch->too_large = false;
  auto context = std::make_unique<grpc::ClientContext>();
  SetDeadline(*context, absl::Now() + kFetchTimeout);
  v1::GetAssetRequest request;
  request.set_digest(fetch->digest);
  auto stream = Fetch::Stream::Start(
      std::move(context), std::move(request),
      [node](auto* call, auto* message, auto* reactor) {
        node->decode().async()->GetAsset(call, message, reactor);
      },
      {.on_message =
           [fetch](v1::AssetChunk& chunk) {
             if (fetch->data.size() + chunk.data().size() > kMaxAssetBytes) {
               fetch->too_large = true;
             } else {
               fetch->data += chunk.data();
             }
           },
       .on_done =
           [this, fetch, node](absl::Status status) {
             if (status.ok() && !fetch->too_large) return EndFetch(fetch, std::move(fetch->data));
             fetch->last =
                 fetch->too_large
                     ? absl::FailedPreconditionError(Cat("asset ", fetch->digest,
                                                         " is larger than the limit of ",
                                                         kMaxAssetBytes, " bytes"))
                     : absl::UnavailableError(Cat("asset ", fetch->digest, ": ", status.message()));
             BATON_LOG_WARN("decode node {}: {}", node->address(), fetch->last);
             FetchFrom(fetch);
           }});
  bool cancel = false;
  {
    MutexLock lock(mu_);
    // It may be over already, or the next node being asked on another thread.
    if (fetches_.count(fetch) != 0 && fetch->next == attempt) {
      fetch->stream = stream;
      cancel = stopped_;
    }
  }
  if (cancel) stream->Cancel();
}

void AssetCache::EndFetch(const std::shared_ptr<Fetch>& fetch, absl::StatusOr<std::string> data) {
  {
    MutexLock lock(mu_);
    fetch->stream.reset();
    fetches_.erase(fetch);
  }
  fetch->done(std::move(data));
}

template <typename T>
void AssetCache::Finish(const std::string& digest, absl::StatusOr<std::string> data) {
  const auto value = data.ok() ? ParseAsset<T>(digest, *data)
                               : absl::StatusOr<std::shared_ptr<const T>>(data.status());
  if (!value.ok()) BATON_LOG_EVERY_SEC(5, "asset {}: {}", digest, value.status());
  std::vector<Done<T>> waiters;
  {
    MutexLock lock(mu_);
    Entry<T>& entry = TableOf<T>()[digest];
    waiters = std::move(entry.waiters);
    if (value.ok()) {
      entry.value = *value;
      entry.waiters.clear();
    } else {
      TableOf<T>().erase(digest);
    }
  }
  for (auto& done : waiters) done(value);
  MutexLock lock(mu_);
  if (--fetching_ == 0) idle_.NotifyAll();
}

}  // namespace baton
