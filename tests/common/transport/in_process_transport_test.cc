#include "common/transport/in_process_transport.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace baton {
namespace {

class Collector : public Receiver {
 public:
  absl::StatusOr<std::shared_ptr<Landing>> OnHeader(std::string_view header, uint64_t bytes,
                                                    PeerId) override {
    if (header == "refuse") return absl::InvalidArgumentError("no");
    return std::make_shared<Buffer>(this, std::string(header), bytes);
  }
  std::vector<std::pair<std::string, std::string>> Take() {
    std::lock_guard<std::mutex> lock(mu_);
    return std::exchange(got_, {});
  }

 private:
  class Buffer : public Landing {
   public:
    Buffer(Collector* owner, std::string header, uint64_t bytes)
        : owner_(owner), header_(std::move(header)), memory_(bytes, '?') {}
    uint8_t* data() override { return reinterpret_cast<uint8_t*>(memory_.data()); }
    void OnComplete(absl::Status status) override {
      ASSERT_TRUE(status.ok());
      std::lock_guard<std::mutex> lock(owner_->mu_);
      owner_->got_.emplace_back(header_, memory_);
    }

   private:
    Collector* const owner_;
    const std::string header_;
    std::string memory_;
  };
  std::mutex mu_;
  std::vector<std::pair<std::string, std::string>> got_;
};

template <typename F>
bool Eventually(F done) {
  for (int i = 0; i < 2500 && !done(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return done();
}

class InProcess : public ::testing::Test {
 protected:
  void SetUp() override { Make({}); }
  void Make(InProcessOptions options) {
    network_ = InProcessNetwork::Create(options);
    a_ = network_->Add("a");
    b_ = network_->Add("b");
    b_->SetReceiver(&receiver_);
    peer_ = *a_->Connect(b_->address(), 1);
  }
  void Send(const std::string& header, const std::string& text) {
    auto owner = std::make_shared<std::string>(text);
    const ConstSpan span(reinterpret_cast<const uint8_t*>(owner->data()), owner->size());
    peer_->Send(header, {span.subspan(0, span.size() / 2), {}, span.subspan(span.size() / 2)},
                owner, [this](absl::Status s) {
                  if (!s.ok()) {
                    std::lock_guard<std::mutex> lock(mu_);
                    last_ = s;
                  }
                  ++(s.ok() ? ok_ : failed_);
                });
  }
  absl::StatusCode last() {
    std::lock_guard<std::mutex> lock(mu_);
    return last_.code();
  }

  Collector receiver_;
  std::atomic<int> ok_{0}, failed_{0};
  std::mutex mu_;
  absl::Status last_;
  std::shared_ptr<InProcessNetwork> network_;
  std::shared_ptr<Transport> a_, b_;
  std::shared_ptr<Peer> peer_;
};

TEST_F(InProcess, MessagesArriveInOrderWithTheirPayload) {
  for (int i = 0; i < 100; ++i) Send(std::to_string(i), "payload " + std::to_string(i));
  ASSERT_TRUE(Eventually([&] { return ok_ == 100; }));
  const auto got = receiver_.Take();
  ASSERT_EQ(got.size(), 100u);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(got[i].first, std::to_string(i));
    EXPECT_EQ(got[i].second, "payload " + std::to_string(i));
  }
  EXPECT_EQ(peer_, *a_->Connect(b_->address(), 1));
}

TEST_F(InProcess, RefusedAndUnreceivedMessagesComplete) {
  Send("refuse", "x");
  Send("take", "y");
  ASSERT_TRUE(Eventually([&] { return ok_ == 2; }));
  EXPECT_EQ(receiver_.Take().size(), 1u);
  b_->SetReceiver(nullptr);
  Send("take", "z");
  ASSERT_TRUE(Eventually([&] { return ok_ == 3; }));
  EXPECT_TRUE(receiver_.Take().empty());
  EXPECT_EQ(b_->stats().messages_refused, 2u);
}

TEST_F(InProcess, FaultsAreTheSameForTheSameSeed) {
  std::vector<std::pair<std::string, std::string>> first;
  for (int round = 0; round < 2; ++round) {
    Make({.window = 1000});
    network_->SetFaults({.drop = 0.2, .duplicate = 0.2, .reorder = 0.2, .corrupt = 0.2, .seed = 5});
    const int before = ok_;
    for (int i = 0; i < 200; ++i) Send(std::to_string(i), "abcdefgh");
    ASSERT_TRUE(Eventually([&] { return ok_ == before + 200; }));
    auto got = receiver_.Take();
    int corrupt = 0, disordered = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      corrupt += got[i].second != "abcdefgh";
      disordered += i > 0 && std::stoi(got[i].first) < std::stoi(got[i - 1].first);
    }
    EXPECT_GT(corrupt, 10);
    EXPECT_GT(disordered, 5);
    EXPECT_NE(got.size(), 200u);
    if (round == 0) {
      first = got;
    } else {
      EXPECT_EQ(got, first);
    }
  }
}

TEST_F(InProcess, DelayDelays) {
  network_->SetFaults({.delay = absl::Milliseconds(100)});
  const absl::Time start = absl::Now();
  Send("x", "y");
  ASSERT_TRUE(Eventually([&] { return ok_ == 1; }));
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(100));
}

TEST_F(InProcess, KilledPeerFailsEverything) {
  network_->SetFaults({.delay = absl::Seconds(100)});
  for (int i = 0; i < 50; ++i) Send("x", "y");
  network_->Kill("b");
  ASSERT_TRUE(Eventually([&] { return failed_ == 50; }));
  EXPECT_EQ(last(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(peer_->failed());
  EXPECT_EQ(a_->stats().sends_in_flight + a_->stats().sends_queued, 0u);
  // Restarted, it is reached under its new incarnation.
  network_->SetFaults({});
  b_ = network_->Add("b");
  b_->SetReceiver(&receiver_);
  peer_ = *a_->Connect(b_->address(), 2);
  Send("x", "again");
  ASSERT_TRUE(Eventually([&] { return ok_ == 1; }));
  EXPECT_EQ(receiver_.Take().at(0).second, "again");
}

TEST_F(InProcess, PausedPeerMeetsTheDeadline) {
  Make({.progress_deadline = absl::Milliseconds(100)});
  network_->Pause("b");
  for (int i = 0; i < 20; ++i) Send("x", "y");
  ASSERT_TRUE(Eventually([&] { return failed_ == 20; }));
  EXPECT_EQ(last(), absl::StatusCode::kDeadlineExceeded);
  network_->Resume("b");
  peer_ = *a_->Connect(b_->address(), 1);
  Send("x", "y");
  EXPECT_TRUE(Eventually([&] { return ok_ == 1; }));
}

TEST_F(InProcess, FailAfterFailsTheConnection) {
  network_->SetFaults({.fail_after = 3});
  for (int i = 0; i < 10; ++i) Send("x", "y");
  ASSERT_TRUE(Eventually([&] { return ok_ + failed_ == 10; }));
  EXPECT_EQ(ok_, 3);
  EXPECT_TRUE(peer_->failed());
}

TEST_F(InProcess, DestroyedTransportCompletesEverything) {
  network_->SetFaults({.delay = absl::Seconds(100)});
  for (int i = 0; i < 50; ++i) Send("x", "y");
  a_.reset();
  EXPECT_EQ(failed_, 50);
  Send("x", "y");
  EXPECT_EQ(failed_, 51);
}

TEST_F(InProcess, WrongAddressesAndSizes) {
  EXPECT_EQ(a_->Connect("tcp://x", 1).status().code(), absl::StatusCode::kInvalidArgument);
  peer_ = *a_->Connect("inproc:nobody", 1);
  Send("x", "y");
  EXPECT_EQ(failed_, 1);
  peer_ = *a_->Connect(b_->address(), 1);
  Send(std::string(kMaxTransportHeaderBytes + 1, 'h'), "");
  EXPECT_EQ(last(), absl::StatusCode::kInvalidArgument);
}

TEST_F(InProcess, ManyThreadsKillAndSend) {
  std::atomic<int> sent{0}, done{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 300; ++i) {
        auto peer = a_->Connect("inproc:b", i / 50);
        if (!peer.ok()) continue;
        ++sent;
        (*peer)->Send("h", {}, nullptr, [&](absl::Status) { ++done; });
        if (i % 60 == 59) (*peer)->Close(absl::CancelledError("x"));
      }
    });
  }
  for (int i = 0; i < 5; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    network_->Kill("b");
    b_ = network_->Add("b");
    b_->SetReceiver(&receiver_);
  }
  for (auto& t : threads) t.join();
  EXPECT_TRUE(Eventually([&] { return sent == done; }));
}

}  // namespace
}  // namespace baton
