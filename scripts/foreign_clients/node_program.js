// npm's @google-cloud/tpu over gRPC: every kind of call, as its samples make them.
'use strict';
const assert = require('node:assert');
const {v2, protos} = require('@google-cloud/tpu');

// What an operation ends with has the number of a state.
const stateOf = node => protos.google.cloud.tpu.v2.Node.State[node.state] ?? node.state;

async function main(project, zone) {
  const tpu = new v2.TpuClient();
  const parent = `projects/${project}/locations/${zone}`;
  const node = {acceleratorType: 'v3-8', runtimeVersion: 'tpu-vm-base', labels: {a: 'b'}};
  const [begun] = await tpu.createNode({parent, node, nodeId: 'by-node'});
  const [made] = await begun.promise();
  assert.equal(stateOf(made), 'READY');
  const name = made.name;
  const [listed] = await tpu.listNodes({parent});
  assert(listed.some(each => each.name === name));
  const [attributes] = await tpu.getGuestAttributes({name});
  assert(attributes.guestAttributes[0].queryValue.items.length > 0);
  const change = {name, labels: {a: 'c'}};
  const [changing] = await tpu.updateNode({node: change, updateMask: {paths: ['labels']}});
  assert.equal((await changing.promise())[0].labels.a, 'c');
  for (const [verb, state] of [['stopNode', 'STOPPED'], ['startNode', 'READY']]) {
    const [operation] = await tpu[verb]({name});
    assert.equal(stateOf((await operation.promise())[0]), state);
  }
  const nodeSpec = [{parent, nodeId: 'queued', node}];
  const queuedResource = {tpu: {nodeSpec}};
  const [queueing] = await tpu.createQueuedResource({parent, queuedResourceId: 'q', queuedResource});
  const [queued] = await queueing.promise();
  assert.equal((await tpu.getQueuedResource({name: queued.name}))[0].name, queued.name);
  const [leaving] = await tpu.deleteQueuedResource({name: queued.name, force: true});
  await leaving.promise();
  const [types] = await tpu.listAcceleratorTypes({parent});
  assert(types.length > 0);
  await assert.rejects(tpu.getNode({name: `${parent}/nodes/none`}), {code: 5});
  const [deleting] = await tpu.deleteNode({name});
  await deleting.promise();
  await assert.rejects(tpu.getNode({name}), {code: 5});
}

main(...process.argv.slice(2)).catch(error => {
  console.error(error);
  process.exit(1);
});
