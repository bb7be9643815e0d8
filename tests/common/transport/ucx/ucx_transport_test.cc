#include "common/transport/ucx/ucx_transport.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "common/transport/ucx/ucx_peer.h"
#include "common/transport/ucx/ucx_util.h"
#include "tests/common/transport/ucx/child_process.h"
#include "tests/common/transport/ucx/payload.h"

namespace baton {
namespace {

using test::Child;
using test::Eventually;

UcxOptions Options(const std::string& tls) {
  UcxOptions options;
  options.tls =
      tls == "tcp" ? std::vector<std::string>{"tcp"} : std::vector<std::string>{"posix", "tcp"};
  options.net_devices = {"lo"};
  return options;
}

absl::Status SendAndWait(Peer& peer, std::string header, std::vector<ConstSpan> payload,
                         std::shared_ptr<const void> owner) {
  std::promise<absl::Status> done;
  peer.Send(std::move(header), std::move(payload), std::move(owner),
            [&](absl::Status s) { done.set_value(std::move(s)); });
  auto future = done.get_future();
  if (future.wait_for(std::chrono::seconds(20)) != std::future_status::ready) {
    std::abort();  // the promise would dangle
  }
  return future.get();
}

class TwoProcesses : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    auto transport = UcxTransport::Create(Options(GetParam()));
    ASSERT_TRUE(transport.ok()) << transport.status();
    transport_ = *std::move(transport);
  }
  std::unique_ptr<Transport> transport_;
};

TEST_P(TwoProcesses, AThousandMixedMessagesArriveWhole) {
  Child child(GetParam());
  auto peer = transport_->Connect(child.address(), 1);
  ASSERT_TRUE(peer.ok()) << peer.status();
  std::mt19937_64 random(3);
  std::atomic<int> ok{0}, failed{0};
  const size_t sizes[] = {0, 1, 100, 4096, 8191, 8192, 65'537, 300'000, 1 << 20, 4 << 20};
  constexpr int kCount = 1000;
  for (int i = 0; i < kCount; ++i) {
    // Few of the large ones: the test is about sizes, not about volume.
    const size_t bytes = sizes[i % 50 == 0 ? 9 : i % 10 == 0 ? 8 : random() % 8];
    auto payload = test::RandomPayload(bytes, i);
    std::vector<ConstSpan> spans;
    if (i % 3 == 0) {
      // Scattered over up to 40 spans, some of them empty.
      size_t at = 0;
      while (at < bytes) {
        const size_t n = std::min(bytes - at, bytes / 40 + random() % 100 + 1);
        spans.push_back(ConstSpan(*payload).subspan(at, n));
        if (random() % 4 == 0) spans.push_back({});
        at += n;
      }
    } else {
      spans.push_back(*payload);
    }
    (*peer)->Send(test::HeaderFor(*payload, i), spans, payload,
                  [&](absl::Status s) { ++(s.ok() ? ok : failed); });
  }
  EXPECT_TRUE(Eventually([&] { return ok + failed == kCount; }, absl::Seconds(60)));
  EXPECT_EQ(failed, 0);
  EXPECT_TRUE(Eventually([&] { return child.Report().good == kCount; }));
  const auto report = child.Report();
  EXPECT_EQ(report.bad, 0);
  EXPECT_EQ(report.failed, 0);
  const TransportStats stats = transport_->stats();
  EXPECT_EQ(stats.messages_sent, 1000u);
  EXPECT_EQ(stats.sends_in_flight, 0u);
  EXPECT_EQ(stats.sends_queued, 0u);
  const std::string lane = (*peer)->lane();
  EXPECT_EQ(lane.substr(0, lane.find('/')), GetParam() == "tcp" ? "tcp" : "posix") << lane;
}

TEST_P(TwoProcesses, ReceivesFromAnotherProcess) {
  test::CheckingReceiver receiver;
  transport_->SetReceiver(&receiver);
  Child child(GetParam());
  ASSERT_EQ(child.Ask("connect " + HexEncode(transport_->address())), "1");
  child.Ask("send 20 3000000");
  EXPECT_TRUE(Eventually([&] { return receiver.counts().good == 20; }));
  EXPECT_EQ(receiver.counts().bad, 0);
  EXPECT_EQ(transport_->stats().bytes_received, 60'000'000u);
  transport_->SetReceiver(nullptr);
  // Nobody receives: dropped, and counted.
  child.Ask("send 1 100");
  EXPECT_TRUE(Eventually([&] { return transport_->stats().messages_refused == 1; }));
}

TEST_P(TwoProcesses, BothWaysAtOnceFromManyThreads) {
  test::CheckingReceiver receiver;
  transport_->SetReceiver(&receiver);
  Child child(GetParam());
  ASSERT_EQ(child.Ask("connect " + HexEncode(transport_->address())), "1");
  child.Ask("send 200 200000");
  std::vector<std::thread> threads;
  std::atomic<int> ok{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      auto peer = transport_->Connect(child.address(), 1);
      ASSERT_TRUE(peer.ok());
      for (int i = 0; i < 50; ++i) {
        auto payload = test::RandomPayload(10'000 * (i % 30), i);
        (*peer)->Send(test::HeaderFor(*payload, t * 1000 + i), {*payload}, payload,
                      [&](absl::Status s) { ok += s.ok(); });
      }
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_TRUE(Eventually([&] { return ok == 200 && receiver.counts().good == 200; }));
  EXPECT_TRUE(Eventually([&] { return child.Report().good == 200; }));
  EXPECT_EQ(receiver.counts().bad + child.Report().bad, 0);
  transport_->SetReceiver(nullptr);
}

TEST_P(TwoProcesses, ARefusedMessageHurtsNobody) {
  Child child(GetParam());
  auto peer = *transport_->Connect(child.address(), 1);
  for (const size_t bytes : {size_t{0}, size_t{100}, size_t{2 << 20}}) {
    auto payload = test::RandomPayload(bytes, 1);
    EXPECT_TRUE(SendAndWait(*peer, "nonsense", {*payload}, payload).ok());
    EXPECT_TRUE(
        SendAndWait(*peer, test::Encode({1, bytes, 0, /*refuse=*/1}), {*payload}, payload).ok());
    EXPECT_TRUE(SendAndWait(*peer, test::HeaderFor(*payload, 1), {*payload}, payload).ok());
  }
  EXPECT_TRUE(Eventually([&] { return child.Report().good == 3; }));
  EXPECT_TRUE(Eventually([&] { return child.Report().refused == 6; }));
}

TEST_P(TwoProcesses, LimitsAreKeptOnBothSides) {
  UcxOptions options = Options(GetParam());
  options.max_payload_bytes = 128 << 20;  // more than the child takes
  auto transport = *UcxTransport::Create(options);
  Child child(GetParam());
  auto peer = *transport->Connect(child.address(), 1);
  auto huge = std::make_shared<std::vector<uint8_t>>(options.max_payload_bytes + 1);
  EXPECT_EQ(SendAndWait(*peer, "x", {*huge}, huge).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SendAndWait(*peer, std::string(kMaxTransportHeaderBytes + 1, 'x'), {}, nullptr).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(peer->failed());
  const ConstSpan large = ConstSpan(*huge).subspan(0, 65 << 20);
  EXPECT_TRUE(SendAndWait(*peer, "x", {large}, huge).ok());
  EXPECT_TRUE(SendAndWait(*peer, std::string(kMaxTransportHeaderBytes, 'x'), {}, nullptr).ok());
  EXPECT_TRUE(Eventually([&] { return child.Report().refused_by_transport == 2; }));
  EXPECT_EQ(child.Report().refused, 1);  // the large one never reached the receiver
}

TEST_P(TwoProcesses, MalformedMessagesAreDropped) {
  test::CheckingReceiver receiver;
  transport_->SetReceiver(&receiver);
  // UCX alone, without our framing.
  auto context = *ucx::CreateContext(Options(GetParam()));
  auto worker = *ucx::CreateWorker(context.get(), 0);
  const std::string raw = *ucx::UnwrapAddress(transport_->address());
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
  params.address = reinterpret_cast<const ucp_address_t*>(raw.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  ucp_ep_h endpoint;
  ASSERT_EQ(ucp_ep_create(worker.get(), &params, &endpoint), UCS_OK);

  const auto prefix = [](uint32_t magic, uint16_t kind) {
    const ucx::MessagePrefix p = {magic, kind, 0, 77};
    return std::string(reinterpret_cast<const char*>(&p), sizeof(p));
  };
  using P = ucx::MessagePrefix;
  const std::string body(2 << 20, 'b');
  const std::pair<std::string, size_t> bad[] = {
      {"", 0},
      {"short", 100},
      {prefix(0x12345678, P::kData), 100},
      {prefix(P::kMagic, 99), 100},
      {prefix(P::kMagic, 99), body.size()},
      {prefix(P::kMagic, P::kHello), 0},
      {prefix(P::kMagic, P::kHello) + "12345678" + "not an address", 0},
      {prefix(P::kMagic, P::kHelloAck) + "123", 0},
      {prefix(P::kMagic, P::kData) + std::string(kMaxTransportHeaderBytes + 1, 'x'), 0},
      {prefix(P::kMagic, P::kData), body.size()},  // no header of the test's
  };
  for (const auto& [header, bytes] : bad) {
    ucp_request_param_t p = {};
    ucs_status_ptr_t request =
        ucp_am_send_nbx(endpoint, 1, header.data(), header.size(), body.data(), bytes, &p);
    ASSERT_FALSE(UCS_PTR_IS_ERR(request));
    if (request == nullptr) continue;
    EXPECT_TRUE(Eventually([&] {
      ucp_worker_progress(worker.get());
      return ucp_request_check_status(request) != UCS_INPROGRESS;
    }));
    ucp_request_free(request);
  }
  EXPECT_TRUE(Eventually([&] {
    ucp_worker_progress(worker.get());
    return transport_->stats().messages_refused == std::size(bad);
  })) << transport_->stats().messages_refused;
  EXPECT_EQ(receiver.counts().good, 0);
  // And goes on.
  Child child(GetParam());
  child.Ask("connect " + HexEncode(transport_->address()));
  child.Ask("send 3 100000");
  EXPECT_TRUE(Eventually([&] { return receiver.counts().good == 3; }));
  ucp_request_param_t force = {};
  force.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  force.flags = UCP_EP_CLOSE_FLAG_FORCE;
  ucs_status_ptr_t closing = ucp_ep_close_nbx(endpoint, &force);
  if (UCS_PTR_IS_PTR(closing)) ucp_request_free(closing);
  transport_->SetReceiver(nullptr);
}

TEST_P(TwoProcesses, OnePeerPerAddressAndIncarnation) {
  Child child(GetParam());
  auto a = *transport_->Connect(child.address(), 1);
  auto b = *transport_->Connect(child.address(), 1);
  EXPECT_EQ(a, b);
  auto c = *transport_->Connect(child.address(), 2);
  EXPECT_NE(a, c);
  EXPECT_TRUE(a->failed());
  EXPECT_EQ(SendAndWait(*a, "x", {}, nullptr).code(), absl::StatusCode::kUnavailable);
  auto payload = test::RandomPayload(500'000, 1);
  EXPECT_TRUE(SendAndWait(*c, test::HeaderFor(*payload, 1), {*payload}, payload).ok());
  c->Close(absl::UnavailableError("enough"));
  EXPECT_EQ(c->status().message(), "enough");
  // Closing is not a failure: no back-off.
  auto d = transport_->Connect(child.address(), 2);
  ASSERT_TRUE(d.ok()) << d.status();
  EXPECT_TRUE(SendAndWait(**d, test::HeaderFor(*payload, 1), {*payload}, payload).ok());
  EXPECT_TRUE(Eventually([&] { return child.Report().good == 2; }));
}

// Of threads that connect at once, one makes the connection; the others may send before it is open.
TEST_P(TwoProcesses, ManyConnectAndSendAtOnce) {
  Child child(GetParam());
  const std::string address = child.address();
  constexpr int kThreads = 4, kRounds = 150;
  std::barrier round(kThreads);
  std::atomic<int> refused{0}, ended{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 1; i <= kRounds; ++i) {
        round.arrive_and_wait();  // each round is a new incarnation, and so a new connection
        auto peer = transport_->Connect(address, i);
        if (!peer.ok()) {
          ++refused;
          continue;
        }
        (*peer)->Send("x", {}, nullptr, [&](absl::Status) { ++ended; });
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(refused, 0);
  EXPECT_TRUE(Eventually([&] { return ended == kThreads * kRounds; })) << ended;
}

INSTANTIATE_TEST_SUITE_P(Lanes, TwoProcesses, ::testing::Values("posix,tcp", "tcp"),
                         [](const auto& info) { return info.param == "tcp" ? "tcp" : "posix"; });

TEST(UcxTransport, ToItself) {
  auto transport = *UcxTransport::Create(Options("tcp"));
  test::CheckingReceiver receiver;
  transport->SetReceiver(&receiver);
  auto peer = *transport->Connect(transport->address(), 1);
  auto payload = test::RandomPayload(1'000'000, 1);
  EXPECT_TRUE(SendAndWait(*peer, test::HeaderFor(*payload, 1), {*payload}, payload).ok());
  EXPECT_TRUE(Eventually([&] { return receiver.counts().good == 1; }));
  transport->SetReceiver(nullptr);
}

TEST(UcxTransport, AddressesThatAreNoneAreRefused) {
  auto transport = *UcxTransport::Create(Options("tcp"));
  std::string good = transport->address();
  std::string flipped = good;
  flipped.back() ^= 1;
  for (const std::string& bad :
       {std::string(), std::string("inproc:x"), good.substr(0, good.size() - 1), flipped,
        good + "x", std::string(100'000, 'x')}) {
    EXPECT_EQ(transport->Connect(bad, 1).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(UcxTransport, BadOptionsAreNamed) {
  UcxOptions device = Options("tcp");
  device.net_devices = {"nosuch0"};
  auto no_device = UcxTransport::Create(device);
  ASSERT_FALSE(no_device.ok());
  EXPECT_NE(std::string(no_device.status().message()).find("nosuch0"), std::string::npos)
      << no_device.status();
  UcxOptions tls = Options("tcp");
  tls.tls = {"carrierpigeon"};
  auto no_tls = UcxTransport::Create(tls);
  ASSERT_FALSE(no_tls.ok());
  EXPECT_NE(std::string(no_tls.status().message()).find("carrierpigeon"), std::string::npos);
  UcxOptions window = Options("tcp");
  window.window = 0;
  EXPECT_EQ(UcxTransport::Create(window).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(UcxTransport, LanesFromTheTextOfUcx) {
  EXPECT_EQ(ucx::ParseLanes("# lane[0]:  0:tcp/lo.0 md[0]  -> md[0]/tcp/sysdev[255] am am_bw#0\n"),
            "tcp/lo");
  EXPECT_EQ(ucx::ParseLanes("# peer: x\n"
                            "#  lane[0]:  5:posix/memory.0 md[3]  -> md[3]/posix/sysdev[255] am\n"
                            "#  lane[1]:  1:tcp/eth0.1 md[0] -> md[0]/tcp/sysdev[255] keepalive\n"),
            "posix+tcp/eth0");
  EXPECT_EQ(ucx::ParseLanes(""), "unknown");
  EXPECT_EQ(ucx::ParseLanes("lane[0]:"), "unknown");
}

}  // namespace
}  // namespace baton
