// The other process: a UCX transport driven by lines on stdin, answering on stdout.
//   child <tls> <keepalive ms> <heartbeat ms> <progress deadline ms>
// Prints its address in hex first. Commands: report | connect HEX | send COUNT BYTES | exit.
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>

#include "absl/strings/str_split.h"
#include "common/base/ids.h"
#include "common/transport/ucx/ucx_transport.h"
#include "tests/common/transport/ucx/payload.h"

namespace baton {
namespace {

int Main(int argc, char** argv) {
  if (argc != 5) return 2;
  UcxOptions options;
  options.tls = absl::StrSplit(argv[1], ',');
  options.net_devices = {"lo"};
  options.keepalive = absl::Milliseconds(std::atoi(argv[2]));
  options.heartbeat = absl::Milliseconds(std::atoi(argv[3]));
  options.progress_deadline = absl::Milliseconds(std::atoi(argv[4]));
  auto transport = UcxTransport::Create(options);
  if (!transport.ok()) {
    std::cerr << transport.status() << std::endl;
    return 1;
  }
  test::CheckingReceiver receiver;
  (*transport)->SetReceiver(&receiver);
  std::cout << HexEncode((*transport)->address()) << std::endl;
  std::shared_ptr<Peer> peer;
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string command;
    words >> command;
    if (command == "exit") break;
    if (command == "report") {
      const auto& c = receiver.counts();
      const TransportStats s = (*transport)->stats();
      std::cout << c.good << ' ' << c.bad << ' ' << c.failed << ' ' << c.refused << ' ' << c.pending
                << ' ' << s.messages_refused << ' ' << s.peers << std::endl;
    } else if (command == "connect") {
      std::string hex;
      words >> hex;
      auto connected = (*transport)->Connect(*HexDecode(hex), 1);
      if (connected.ok()) peer = *connected;
      std::cout << connected.ok() << std::endl;
    } else if (command == "send") {
      size_t count = 0, bytes = 0;
      words >> count >> bytes;
      const auto payload = test::RandomPayload(bytes, 1);
      for (size_t i = 0; i < count; ++i) {
        peer->Send(test::HeaderFor(*payload, i), {*payload}, payload, nullptr);
      }
      std::cout << "sent" << std::endl;
    }
  }
  (*transport)->SetReceiver(nullptr);
  return 0;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) { return baton::Main(argc, argv); }
