// The Service Bus SDK for JavaScript: one feature after the other, with what each gave as a line of JSON.
// Its orders come as one JSON argument: {connection_string, administration}, two connection strings.
'use strict';
const { ServiceBusClient, ServiceBusAdministrationClient } = require('@azure/service-bus');

const orders = JSON.parse(process.argv[2]);
const say = (event, found) => console.log(JSON.stringify({ event, ...found }));
const WAIT = { maxWaitTimeInMs: 10000 };

async function administration(admin) {
    await admin.createQueue('orders', { lockDuration: 'PT1M', maxDeliveryCount: 3 });
    await admin.createQueue('baskets', { requiresSession: true });
    await admin.createTopic('events');
    await admin.createSubscription('events', 'red');
    const queue = await admin.getQueue('orders');
    await admin.updateQueue({ ...queue, maxDeliveryCount: 5 });
    await admin.getNamespaceProperties();
    const queues = [];
    for await (const one of admin.listQueues()) queues.push(one.name);
    say('administration', {
        queues,
        lock_duration: queue.lockDuration,
        max_delivery_count: (await admin.getQueue('orders')).maxDeliveryCount,
        missing: await admin.queueExists('nothing'),
    });
}

async function rules(client, admin) {
    await admin.createRule('events', 'red', 'color', { sqlExpression: "color = 'red'" }, { sqlExpression: 'SET seen = 1' });
    const manager = client.createRuleManager('events', 'red');
    await manager.deleteRule('$Default');
    await manager.createRule('subject', { subject: 'urgent', applicationProperties: { region: 7 } });
    let refused;
    await manager.createRule('bad', { sqlExpression: 'color =' }).catch((error) => { refused = error.message; });
    const names = [];
    for await (const rule of manager.listRules()) names.push(rule.name);
    const sender = client.createSender('events');
    await sender.sendMessages([
        { body: 'passes', applicationProperties: { color: 'red' } },
        { body: 'does not', applicationProperties: { color: 'blue' } },
        { body: 'correlates', subject: 'urgent', applicationProperties: { region: 7 } },
    ]);
    const receiver = client.createReceiver('events', 'red', { receiveMode: 'receiveAndDelete' });
    const received = await receive(receiver, 2);
    await receiver.close();
    say('rules', {
        names: names.sort(),
        refused,
        bodies: received.map((message) => message.body),
        seen: received.map((message) => message.applicationProperties.seen ?? null),
    });
}

// The SDK may give fewer than were asked for; it says nothing about when there are no more.
async function receive(receiver, count) {
    const found = [];
    while (found.length < count) {
        const some = await receiver.receiveMessages(count - found.length, WAIT);
        if (some.length === 0) break;
        found.push(...some);
    }
    return found;
}

async function send_and_receive(client) {
    const sender = client.createSender('orders');
    await sender.sendMessages({
        body: { order: 1 },
        messageId: 'one',
        contentType: 'application/json',
        timeToLive: 60000,
        applicationProperties: { text: 'grüße', number: 7, yes: true, when: new Date(1794000000000) },
    });
    const batch = await sender.createMessageBatch();
    for (const body of ['two', 'three']) batch.tryAddMessage({ body });
    await sender.sendMessages(batch);
    const receiver = client.createReceiver('orders');
    const [first, second, third] = await receive(receiver, 3);
    say('sent', {
        body: first.body, id: first.messageId, properties: first.applicationProperties, count: batch.count,
        bodies: [second.body, third.body], time_to_live: first.timeToLive,
    });
    await receiver.completeMessage(first);
    await receiver.renewMessageLock(second);
    await receiver.abandonMessage(second);
    await receiver.deferMessage(third);
    const [again] = await receive(receiver, 1);
    const [deferred] = await receiver.receiveDeferredMessages([third.sequenceNumber]);
    const peeked = await receiver.peekMessages(10);
    say('settled', {
        again: again.body, delivery_count: again.deliveryCount, deferred: deferred.body, peeked: peeked.length,
    });
    await receiver.completeMessage(again);
    await receiver.completeMessage(deferred);
    await receiver.close();
}

async function dead_letter(client) {
    await client.createSender('orders').sendMessages({ body: 'broken' });
    const receiver = client.createReceiver('orders');
    const [message] = await receive(receiver, 1);
    await receiver.deadLetterMessage(message, { deadLetterReason: 'broken', deadLetterErrorDescription: 'no price' });
    await receiver.close();
    const dead = client.createReceiver('orders', { subQueueType: 'deadLetter' });
    const [letter] = await receive(dead, 1);
    say('dead_letter', {
        body: letter.body, reason: letter.deadLetterReason, description: letter.deadLetterErrorDescription,
    });
    await dead.completeMessage(letter);
    await dead.close();
}

async function schedule(client) {
    const sender = client.createSender('orders');
    const due = new Date(Date.now() + 2000);
    const [kept, cancelled] = await sender.scheduleMessages([{ body: 'later' }, { body: 'never' }], due);
    await sender.cancelScheduledMessages(cancelled);
    const receiver = client.createReceiver('orders');
    const [peeked] = await receiver.peekMessages(1, { fromSequenceNumber: kept });
    const [message] = await receive(receiver, 1);
    say('schedule', {
        peeked: peeked.state, body: message.body, early: message.enqueuedTimeUtc < due, arrived_early: new Date() < due,
    });
    await receiver.completeMessage(message);
    await receiver.close();
}

async function sessions(client) {
    const sender = client.createSender('baskets');
    await sender.sendMessages(['a', 'b', 'a'].map((sessionId, number) => ({ body: number, sessionId })));
    const first = await client.acceptSession('baskets', 'a');
    const messages = await receive(first, 2);
    await first.setSessionState({ seen: 2 });
    await first.renewSessionLock();
    const state = await first.getSessionState();
    for (const message of messages) await first.completeMessage(message);
    let refused;
    await client.acceptSession('baskets', 'a').catch((error) => { refused = error.code === 'SessionCannotBeLocked'; });
    const next = await client.acceptNextSession('baskets');
    const [other] = await receive(next, 1);
    await next.completeMessage(other);
    say('sessions', { bodies: messages.map((message) => message.body), state, refused, next: next.sessionId });
    await first.close();
    await next.close();
}

async function main() {
    const admin = new ServiceBusAdministrationClient(orders.administration);
    // A session that is taken would be asked for again for a minute.
    const client = new ServiceBusClient(orders.connection_string, { retryOptions: { maxRetries: 0 } });
    await administration(admin);
    await send_and_receive(client);
    await dead_letter(client);
    await schedule(client);
    await sessions(client);
    await rules(client, admin);
    const left = await admin.getQueueRuntimeProperties('orders');
    await admin.deleteQueue('orders');
    say('counted', { left: left.totalMessageCount, deleted: !(await admin.queueExists('orders')) });
    await client.close();
}

main().catch((error) => {
    say('failed', { name: error.name, code: error.code, message: error.message });
    process.exitCode = 1;
});
