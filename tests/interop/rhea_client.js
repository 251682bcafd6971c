// A client by other people: it sends messages to a queue, receives them, and settles each in another way.
// Its orders come as one JSON argument; what happens goes to standard output, one JSON object a line.
'use strict';
const rhea = require('rhea');

const orders = JSON.parse(process.argv[2]);
const container = rhea.create_container();
const say = (event) => console.log(JSON.stringify(event));

const connection = container.connect({
    host: '127.0.0.1',
    port: orders.port,
    hostname: '127.0.0.1',
    // With a password it is SASL PLAIN, without one ANONYMOUS.
    username: orders.username,
    password: orders.password,
    reconnect: false,
});

function show_token(then) {
    const sender = connection.open_sender('$cbs');
    const receiver = connection.open_receiver({ source: '$cbs', target: 'cbs-reply' });
    receiver.on('message', (context) => {
        say({ event: 'token', status: context.message.application_properties['status-code'] });
        then();
    });
    receiver.on('receiver_open', () => {
        sender.send({
            message_id: 'token',
            reply_to: 'cbs-reply',
            application_properties: { operation: 'put-token', type: orders.token_type, name: orders.audience },
            body: orders.token,
        });
    });
}

function send_messages() {
    const bodies = ['complete', 'abandon', 'dead-letter', 'x'.repeat(orders.large)];
    const sender = connection.open_sender(orders.queue);
    let settled = 0;
    sender.once('sendable', () => {
        for (const body of bodies) {
            sender.send({
                message_id: body.slice(0, 20),
                application_properties: { text: body.slice(0, 5), number: 7, yes: true },
                body: rhea.message.data_section(Buffer.from(body)),
            });
        }
    });
    for (const outcome of ['accepted', 'rejected', 'released', 'modified']) {
        sender.on(outcome, () => {
            say({ event: 'sent', outcome });
            if (++settled === bodies.length) receive_messages();
        });
    }
}

function receive_messages() {
    const receiver = connection.open_receiver({
        source: orders.queue,
        autoaccept: false,
        credit_window: 0,
        snd_settle_mode: 0,
        rcv_settle_mode: orders.settles_second ? 1 : 0,
    });
    // One at a time: rhea merges the outcomes of two deliveries that it settles together, even if they differ.
    receiver.on('receiver_open', () => receiver.add_credit(1));
    let left = 5; // the abandoned one comes twice
    const done = () => (--left === 0 ? connection.close() : receiver.add_credit(1));
    receiver.on('message', (context) => {
        const body = context.message.body.content.toString();
        const { delivery_count, application_properties } = context.message;
        say({ event: 'received', body: body.slice(0, 20), size: body.length, delivery_count, application_properties });
        if (body === 'abandon' && !delivery_count) {
            context.delivery.modified({ delivery_failed: true, undeliverable_here: false });
        } else if (body === 'dead-letter') {
            const info = { DeadLetterReason: 'Rhea', DeadLetterErrorDescription: 'said so' };
            context.delivery.reject({ condition: 'com.microsoft:dead-letter', description: 'said so', info });
        } else {
            context.delivery.accept();
        }
        if (!orders.settles_second) process.nextTick(done);
    });
    receiver.on('settled', () => {
        say({ event: 'settled' });
        done();
    });
}

connection.on('connection_open', () => (orders.token ? show_token(send_messages) : send_messages()));
connection.on('connection_close', () => say({ event: 'closed' }));
for (const name of ['connection_error', 'session_error', 'receiver_error', 'sender_error', 'protocol_error']) {
    container.on(name, (context) => say({ event: 'failed', name, what: String(context.error || context) }));
}
container.on('error', (error) => say({ event: 'failed', name: 'error', what: String(error) }));
container.on('disconnected', (context) => {
    say({ event: 'disconnected', error: context.error ? String(context.error) : null });
    process.exit(0);
});
