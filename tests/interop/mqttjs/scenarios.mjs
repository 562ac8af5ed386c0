// MQTT.js, unchanged, against a broker: node scenarios.mjs URL VERSION [CA_FILE]
//
// Prints one JSON line per scenario: {"name": ..., "error": null or text}. Every wait is for an event, with a limit.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import mqtt from 'mqtt';

const WAIT_MS = 15_000;
const [url, versionText, authority] = process.argv.slice(2);
const version = Number(versionText);
const five = version === 5;
const run = `mqttjs/${process.pid}`;
const open = new Set();
let scenario = 0;

const topic = (name) => `${run}/${scenario}/${name}`;
const clientId = (name) => `mqttjs-${process.pid}-${scenario}-${name}`;

function limited(promise, what) {
  let timer;
  const limit = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`no ${what} within ${WAIT_MS} ms`)), WAIT_MS);
  });
  return Promise.race([promise, limit]).finally(() => clearTimeout(timer));
}

function options(name, extra = {}) {
  return {
    protocolVersion: version,
    clientId: clientId(name),
    clean: true,
    reconnectPeriod: 0,
    connectTimeout: WAIT_MS,
    ...(authority ? { ca: readFileSync(authority) } : {}),
    ...extra,
  };
}

class Client {
  static async connect(name, extra) {
    const client = new Client();
    client.mqtt = mqtt.connect(url, options(name, extra));
    open.add(client);
    client.messages = [];
    client.waiting = [];
    client.mqtt.on('message', (t, payload, packet) => {
      const message = { topic: t, payload, packet, text: payload.length < 1000 ? payload.toString() : '' };
      const waiting = client.waiting.shift();
      if (waiting) waiting(message);
      else client.messages.push(message);
    });
    const refused = once(client.mqtt, 'error').then(([error]) => { throw error; });
    refused.catch(() => {});
    const [connack] = await limited(Promise.race([once(client.mqtt, 'connect'), refused]), 'CONNACK');
    client.connack = connack;
    client.mqtt.on('error', () => {});
    return client;
  }

  next() {
    if (this.messages.length) return Promise.resolve(this.messages.shift());
    return limited(new Promise((resolve) => this.waiting.push(resolve)), 'message');
  }

  async take(count) {
    const taken = [];
    while (taken.length < count) taken.push(await this.next());
    return taken;
  }

  subscribe(filter, opts) {
    return limited(this.mqtt.subscribeAsync(filter, opts), 'SUBACK');
  }

  publish(t, payload, opts) {
    return limited(this.mqtt.publishAsync(t, payload, opts), 'acknowledgement');
  }

  async leave() {
    open.delete(this);
    await limited(this.mqtt.endAsync(), 'end');
  }

  // The network fails: no DISCONNECT.
  drop() {
    open.delete(this);
    const stream = this.mqtt.stream;
    this.mqtt.end(true);
    stream.destroy();
  }
}

const session = () => (five ? { clean: false, properties: { sessionExpiryInterval: 300 } } : { clean: false });
const texts = (messages) => messages.map((message) => message.text);
const numbers = (count) => Array.from({ length: count }, (_, index) => String(index));

const both = {
  async 'messages at every qos'() {
    const subscriber = await Client.connect('s');
    const publisher = await Client.connect('p');
    for (const qos of [0, 1, 2]) {
      const granted = await subscriber.subscribe(topic(qos), { qos });
      assert.equal(granted[0].qos, qos);
      for (const text of numbers(20)) await publisher.publish(topic(qos), text, { qos });
      const received = await subscriber.take(20);
      assert.deepEqual(texts(received), numbers(20));
      assert.ok(received.every(({ packet }) => packet.qos === qos && !packet.retain && !packet.dup));
    }
    await limited(subscriber.mqtt.unsubscribeAsync(topic(1)), 'UNSUBACK');
    await publisher.publish(topic(1), 'nobody', { qos: 1 });
    await publisher.publish(topic(2), 'end', { qos: 2 });
    assert.equal((await subscriber.next()).text, 'end');
  },

  async 'a large payload'() {
    const client = await Client.connect('c');
    await client.subscribe(topic('t'), { qos: 1 });
    const payload = Buffer.alloc(1_000_000, 'abcdefg');
    await client.publish(topic('t'), payload, { qos: 1 });
    assert.ok((await client.next()).payload.equals(payload));
  },

  async 'the right password'() {
    const client = await Client.connect('c', { username: 'ann', password: 'secret' });
    await client.subscribe(topic('t'), { qos: 0 });
  },

  async 'a wrong password'() {
    await assert.rejects(Client.connect('c', { username: 'ann', password: 'wrong' }), (error) => {
      assert.ok([4, 5, 0x86].includes(error.code), `code ${error.code}`);
      return true;
    });
  },

  async 'retained messages'() {
    const publisher = await Client.connect('p');
    await publisher.publish(topic('kept'), 'old', { qos: 1, retain: true });
    await publisher.publish(topic('kept'), 'kept', { qos: 1, retain: true });
    const subscriber = await Client.connect('s');
    await subscriber.subscribe(topic('#'), { qos: 1 });
    const message = await subscriber.next();
    assert.equal(message.text, 'kept');
    assert.ok(message.packet.retain);
    await publisher.publish(topic('kept'), '', { qos: 1, retain: true });
    assert.equal((await subscriber.next()).text, '');
    const later = await Client.connect('l');
    await later.subscribe(topic('#'), { qos: 1 });
    await publisher.publish(topic('end'), 'end', { qos: 1 });
    assert.equal((await later.next()).text, 'end');
  },

  async 'wills of lost clients only'() {
    const watcher = await Client.connect('w');
    await watcher.subscribe(topic('#'), { qos: 2 });
    const will = { topic: topic('will'), payload: Buffer.from('gone'), qos: 1, retain: false };
    await (await Client.connect('leaves', { will })).leave();
    (await Client.connect('lost', { will })).drop();
    assert.equal((await watcher.next()).text, 'gone');
    await watcher.publish(topic('end'), 'end', { qos: 1 });
    assert.equal((await watcher.next()).text, 'end');
  },

  async 'a persistent session'() {
    const first = await Client.connect('s', session());
    assert.equal(first.connack.sessionPresent, false);
    await first.subscribe(topic('t'), { qos: 2 });
    await first.leave();
    const publisher = await Client.connect('p');
    for (const text of numbers(10)) await publisher.publish(topic('t'), text, { qos: 1 + (Number(text) % 2) });
    const again = await Client.connect('s', session());
    assert.equal(again.connack.sessionPresent, true);
    const received = await again.take(10);
    assert.deepEqual(texts(received).sort(), numbers(10));
    await again.leave();
    const clean = await Client.connect('s');
    assert.equal(clean.connack.sessionPresent, false);
  },

  async 'a takeover'() {
    const first = await Client.connect('same');
    const closed = once(first.mqtt, 'close');
    const disconnect = five ? once(first.mqtt, 'disconnect') : null;
    const second = await Client.connect('same');
    if (five) assert.equal((await limited(disconnect, 'DISCONNECT'))[0].reasonCode, 0x8e);
    await limited(closed, 'close');
    open.delete(first);
    await second.subscribe(topic('t'), { qos: 1 });
    await second.publish(topic('t'), 'mine', { qos: 1 });
    assert.equal((await second.next()).text, 'mine');
  },

  async 'reconnecting by itself'() {
    const client = await Client.connect('c', { ...session(), reconnectPeriod: 10 });
    await client.subscribe(topic('t'), { qos: 1 });
    const again = once(client.mqtt, 'connect');
    client.mqtt.stream.destroy();
    const [connack] = await limited(again, 'reconnection');
    assert.equal(connack.sessionPresent, true);
    await client.publish(topic('t'), 'after', { qos: 1 });
    assert.equal((await client.next()).text, 'after');
  },
};

const onlyFive = {
  async 'properties and a response'() {
    const requester = await Client.connect('requester');
    const responder = await Client.connect('responder');
    await responder.subscribe(topic('request'), { qos: 1 });
    await requester.subscribe(topic('response'), { qos: 1 });
    await requester.publish(topic('request'), 'question', {
      qos: 1,
      properties: {
        responseTopic: topic('response'),
        correlationData: Buffer.from([0, 255, 7]),
        contentType: 'text/plain',
        payloadFormatIndicator: true,
        messageExpiryInterval: 600,
        userProperties: { name: ['ünï', 'again'], other: 'x' },
      },
    });
    const { properties } = (await responder.next()).packet;
    assert.equal(properties.contentType, 'text/plain');
    assert.equal(properties.payloadFormatIndicator, true);
    assert.deepEqual({ ...properties.userProperties }, { name: ['ünï', 'again'], other: 'x' });
    assert.ok(properties.messageExpiryInterval >= 590 && properties.messageExpiryInterval <= 600);
    await responder.publish(properties.responseTopic, 'answer', {
      qos: 1,
      properties: { correlationData: properties.correlationData },
    });
    const response = await requester.next();
    assert.equal(response.text, 'answer');
    assert.deepEqual([...response.packet.properties.correlationData], [0, 255, 7]);
  },

  async 'message expiry'() {
    const first = await Client.connect('s', session());
    await first.subscribe(topic('t'), { qos: 1 });
    await first.leave();
    const publisher = await Client.connect('p');
    await publisher.publish(topic('t'), 'stale', { qos: 1, properties: { messageExpiryInterval: 0 } });
    await publisher.publish(topic('t'), 'fresh', { qos: 1, properties: { messageExpiryInterval: 600 } });
    const again = await Client.connect('s', session());
    assert.equal((await again.next()).text, 'fresh');
  },

  async 'topic aliases it assigns itself'() {
    const subscriber = await Client.connect('s');
    await subscriber.subscribe(topic('#'), { qos: 1 });
    const publisher = await Client.connect('p', { autoAssignTopicAlias: true });
    for (const text of numbers(6)) await publisher.publish(topic(`t${Number(text) % 2}`), text, { qos: 1 });
    const received = await subscriber.take(6);
    assert.deepEqual(texts(received), numbers(6));
    assert.deepEqual(received.map((message) => message.topic), numbers(6).map((text) => topic(`t${Number(text) % 2}`)));
  },

  async 'subscription identifiers and no local'() {
    const client = await Client.connect('c');
    const other = await Client.connect('o');
    await client.subscribe(topic('#'), { qos: 1, properties: { subscriptionIdentifier: 7 } });
    await client.subscribe(topic('mute'), { qos: 1, nl: true, properties: { subscriptionIdentifier: 8 } });
    await client.publish(topic('mute'), 'own', { qos: 1 });
    await other.publish(topic('mute'), 'foreign', { qos: 1 });
    assert.deepEqual([(await client.next()).packet.properties.subscriptionIdentifier].flat(), [7]);
    assert.deepEqual([(await client.next()).packet.properties.subscriptionIdentifier].flat().sort(), [7, 8]);
  },

  async 'a shared subscription'() {
    const members = [await Client.connect('1'), await Client.connect('2')];
    for (const member of members) await member.subscribe(`$share/g/${topic('job')}`, { qos: 1 });
    const publisher = await Client.connect('p');
    for (const text of numbers(10)) await publisher.publish(topic('job'), text, { qos: 1 });
    const received = [...(await members[0].take(5)), ...(await members[1].take(5))];
    assert.deepEqual(texts(received).sort(), numbers(10));
  },

  async 'reason codes'() {
    const client = await Client.connect('c');
    // Its promise tells only of failures; the code of a success is in the packet.
    const pubacks = [];
    client.mqtt.on('packetreceive', (packet) => packet.cmd === 'puback' && pubacks.push(packet.reasonCode));
    await client.publish(topic('nobody'), 'x', { qos: 1 });
    assert.deepEqual(pubacks, [0x10]);
    await assert.rejects(client.subscribe('$share//x', { qos: 1 }));
    await client.subscribe(topic('t'), { qos: 1 });
  },

  async 'one message at a time'() {
    const subscriber = await Client.connect('s', { properties: { receiveMaximum: 1 } });
    await subscriber.subscribe(topic('t'), { qos: 2 });
    const publisher = await Client.connect('p');
    for (const text of numbers(20)) await publisher.publish(topic('t'), text, { qos: 1 + (Number(text) % 2) });
    assert.deepEqual(texts(await subscriber.take(20)), numbers(20));
  },
};

for (const [name, play] of Object.entries(five ? { ...both, ...onlyFive } : both)) {
  scenario += 1;
  let error = null;
  try {
    await play();
  } catch (failure) {
    error = failure.stack ?? String(failure);
  }
  for (const client of open) client.mqtt.end(true);
  open.clear();
  console.log(JSON.stringify({ name, error }));
}
process.exit(0);
