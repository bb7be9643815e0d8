// Test messages: the header carries a number, the payload's length and its checksum.
#pragma once

#include <xxhash.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/transport/transport.h"

namespace baton::test {

struct TestHeader {
  uint64_t number = 0;
  uint64_t bytes = 0;
  uint64_t checksum = 0;
  uint64_t refuse = 0;  // 1: the receiver refuses it
};

inline std::string Encode(const TestHeader& header) {
  return {reinterpret_cast<const char*>(&header), sizeof(header)};
}

inline std::shared_ptr<std::vector<uint8_t>> RandomPayload(size_t bytes, uint64_t seed) {
  auto payload = std::make_shared<std::vector<uint8_t>>(bytes);
  std::mt19937_64 random(seed);
  for (size_t i = 0; i + 8 <= bytes; i += 8) {
    const uint64_t value = random();
    std::memcpy(payload->data() + i, &value, 8);
  }
  return payload;
}

inline std::string HeaderFor(const std::vector<uint8_t>& payload, uint64_t number) {
  return Encode({number, payload.size(), XXH3_64bits(payload.data(), payload.size()), 0});
}

// Checks what lands and counts.
class CheckingReceiver : public Receiver {
 public:
  struct Counts {
    std::atomic<int> good{0}, bad{0}, failed{0}, refused{0}, pending{0};
    std::mutex mu;
    std::multiset<uint64_t> numbers;  // of good ones
  };

  absl::StatusOr<std::shared_ptr<Landing>> OnHeader(std::string_view header, uint64_t bytes,
                                                    PeerId) override {
    TestHeader h;
    if (header.size() == sizeof(h)) std::memcpy(&h, header.data(), sizeof(h));
    if (header.size() != sizeof(h) || h.refuse != 0 || h.bytes != bytes) {
      ++counts_->refused;
      return absl::InvalidArgumentError("not for me");
    }
    ++counts_->pending;
    return std::make_shared<CheckedLanding>(counts_, h);
  }

  Counts& counts() { return *counts_; }

 private:
  class CheckedLanding : public Landing {
   public:
    CheckedLanding(std::shared_ptr<Counts> counts, const TestHeader& header)
        : counts_(std::move(counts)), header_(header), memory_(header.bytes) {}
    ~CheckedLanding() override {
      if (!completed_) ++counts_->bad;
    }
    uint8_t* data() override { return memory_.data(); }
    void OnComplete(absl::Status status) override {
      if (completed_) ++counts_->bad;  // must come once
      completed_ = true;
      --counts_->pending;
      if (!status.ok()) {
        ++counts_->failed;
        return;
      }
      if (XXH3_64bits(memory_.data(), memory_.size()) != header_.checksum) {
        ++counts_->bad;
        return;
      }
      std::lock_guard<std::mutex> lock(counts_->mu);
      counts_->numbers.insert(header_.number);
      ++counts_->good;
    }

   private:
    const std::shared_ptr<Counts> counts_;
    const TestHeader header_;
    std::vector<uint8_t> memory_;
    bool completed_ = false;
  };

  const std::shared_ptr<Counts> counts_ = std::make_shared<Counts>();
};

}  // namespace baton::test
