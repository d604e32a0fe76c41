// Ends a process of `node --test` at once whose file an earlier attempt has been through, or that hung or crashed.
'use strict';
if (process.env.NODE_TEST_CONTEXT && process.argv[1]) {
  const {before, named} = require('./fleet_events.cjs');
  const {files, killed} = before();
  const id = named(process.argv[1]);
  if (files.has(id) || killed.has(id)) process.exit(0);
}
