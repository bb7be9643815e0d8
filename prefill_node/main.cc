// baton-prefill: reads the config, loads the models, serves until SIGTERM, drains.
#include "common/node/main/node_main.h"
#include "prefill_node/prefill_node.h"

int main(int argc, char** argv) {
  // A producer that cannot send is of no use.
  return baton::RunNode<baton::PrefillNode>(argc, argv,
                                            {.name = "baton-prefill",
                                             .description = "Computes K/V of shared prefixes.",
                                             .needs_transport = true},
                                            baton::PrefillSection());
}
