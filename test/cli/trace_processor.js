// node trace_processor.js FOLDER: Perfetto's trace_processor, from engine_bundle.js and the wasm file beside it in FOLDER, as a filter:
// standard input holds its RPC messages (TraceProcessorRpcStream), standard output gets the answers.
'use strict';
const fs = require('fs');
const path = require('path');

const folder = process.argv[2];
process.on('uncaughtException', (error) => {
  // Behind the lines of the bundle, which are very long.
  process.stderr.write(`${String(error.stack || error).slice(-2000)}\n`);
  process.exit(1);
});

// The bundle is made for a worker of a browser: it gets what it uses of one, and no process.
const worker = {location: {href: 'http://localhost/'}};
class FileRequest {
  open(method, url) {
    this.file = path.join(folder, path.basename(url));
  }
  send() {
    this.response = fs.readFileSync(this.file);
    this.status = 200;
  }
}
const log = {log() {}, warn: (text) => process.stderr.write(`${text}\n`), error: (text) => process.stderr.write(`${text}\n`)};
const bundle = fs.readFileSync(path.join(folder, 'engine_bundle.js'), 'utf8');
new Function('self', 'WorkerGlobalScope', 'process', 'XMLHttpRequest', 'console', bundle)(worker, Object, undefined, FileRequest, log);

const put = (bytes) => {
  for (let at = 0; at < bytes.length;) at += fs.writeSync(1, bytes, at);
};
const port = {postMessage: put};
worker.onmessage({data: port});
// The module tells in a microtask that it is ready.
setImmediate(() => port.onmessage({data: new Uint8Array(fs.readFileSync(0))}));
