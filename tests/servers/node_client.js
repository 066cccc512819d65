// A foreign gRPC client for tests: one JSON object a line in, what came of that call out. Messages are base64.
const path = require("path");
const readline = require("readline");
const grpc = require(path.join(process.argv[2], "@grpc", "grpc-js"));

const same = (buffer) => buffer;
const clients = new Map();

function clientFor(ask) {
  const key = `${ask.address} ${ask.gzip}`;
  if (!clients.has(key)) {
    const options = { "grpc.max_receive_message_length": -1, "grpc.max_send_message_length": -1 };
    if (ask.gzip) options["grpc.default_compression_algorithm"] = 2;
    clients.set(key, new grpc.Client(ask.address, grpc.credentials.createInsecure(), options));
  }
  return clients.get(key);
}

function metadataOf(ask) {
  const metadata = new grpc.Metadata();
  for (const [name, value] of ask.metadata) {
    metadata.add(name, name.endsWith("-bin") ? Buffer.from(value, "base64") : value);
  }
  return metadata;
}

function pairs(metadata) {
  const found = [];
  for (const [name, values] of Object.entries(metadata ? metadata.toJSON() : {})) {
    for (const value of values) {
      found.push([name, typeof value === "string" ? value : Buffer.from(value).toString("base64")]);
    }
  }
  return found;
}

function run(ask) {
  const outcome = { id: ask.id, responses: [], initial: [] };
  const options = ask.timeout === null ? {} : { deadline: Date.now() + ask.timeout * 1000 };
  const requests = ask.requests.map((text) => Buffer.from(text, "base64"));
  const metadata = metadataOf(ask);
  const client = clientFor(ask);
  let call;
  const done = (response) => {
    if (response) outcome.responses.push(response.toString("base64"));
  };
  const ignored = (error, response) => done(response);
  if (ask.kind === "unary") call = client.makeUnaryRequest(ask.path, same, same, requests[0], metadata, options, ignored);
  else if (ask.kind === "client") call = client.makeClientStreamRequest(ask.path, same, same, metadata, options, ignored);
  else if (ask.kind === "server") call = client.makeServerStreamRequest(ask.path, same, same, requests[0], metadata, options);
  else call = client.makeBidiStreamRequest(ask.path, same, same, metadata, options);
  call.on("metadata", (initial) => { outcome.initial = pairs(initial); });
  call.on("error", () => {});
  if (ask.kind === "server" || ask.kind === "both") {
    call.on("data", (response) => {
      done(response);
      if (ask.cancel_after === outcome.responses.length) call.cancel();
      if (ask.in_turn) sendNext();
    });
  }
  let sent = 0;
  function sendNext() {
    if (sent < requests.length) call.write(requests[sent++]);
    else call.end();
  }
  if (ask.kind === "client" || ask.kind === "both") {
    if (ask.in_turn) sendNext();
    else while (sent <= requests.length) { sendNext(); if (sent === requests.length) { call.end(); break; } }
  }
  if (ask.cancel_after === 0) setTimeout(() => call.cancel(), 100);
  call.on("status", (status) => {
    outcome.status = status.code;
    outcome.message = status.details;
    outcome.trailing = pairs(status.metadata);
    setImmediate(() => process.stdout.write(JSON.stringify(outcome) + "\n"));
  });
}

readline.createInterface({ input: process.stdin }).on("line", (line) => run(JSON.parse(line)));
