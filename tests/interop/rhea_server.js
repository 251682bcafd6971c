// A server by other people: it takes any token, and does with each message what the message's body asks for.
// What it sees goes to standard output, one JSON object a line.
'use strict';
const rhea = require('rhea');

const container = rhea.create_container({ autoaccept: false, autosettle: true });
const LARGE = 200000;
const say = (event) => console.log(JSON.stringify(event));

// ---- $cbs ----

let answers;

function answer_token(context) {
    const request = context.message;
    context.delivery.accept();
    say({ event: 'token', ...request.application_properties, token: String(request.body).slice(0, 21) });
    answers.send({
        correlation_id: request.message_id,
        application_properties: { 'status-code': rhea.types.wrap_int(202), 'status-description': 'Accepted' },
        body: null,
    });
}

// ---- messages to us ----

const outcomes = {
    accept: (delivery) => delivery.accept(),
    reject: (delivery) => delivery.reject({ condition: 'rhea:no', description: 'not this one' }),
    release: (delivery) => delivery.release(),
    modify: (delivery) => delivery.modified({ delivery_failed: true, undeliverable_here: true }),
};

container.on('message', (context) => {
    const address = context.receiver.target.address;
    if (address === '$cbs') return answer_token(context);
    const body = context.message.body.content;
    const asked = body.length >= LARGE ? 'accept' : body.toString();
    say({ event: 'message', id: context.message.message_id, size: body.length, asked });
    if (asked === 'detach') {
        context.receiver.close({ condition: 'rhea:gone', description: 'the link is closed' });
    } else {
        outcomes[asked](context.delivery);
    }
});

// ---- messages from us ----

const bodies = ['one', 'two', 'three', 'x'.repeat(LARGE)];
let next = 0;

container.on('sendable', (context) => {
    if (context.sender === answers) return;
    while (context.sender.sendable() && next < bodies.length) {
        const body = rhea.message.data_section(Buffer.from(bodies[next]));
        context.sender.send({ message_id: `m${next}`, body }, Buffer.from(`tag-${next}-0123456789`));
        next++;
    }
});

for (const name of ['accepted', 'rejected', 'released', 'modified']) {
    container.on(name, (context) => {
        if (context.sender === answers) return;
        const state = context.delivery.remote_state;
        const error = state.error && { condition: state.error.condition, info: state.error.info };
        say({
            event: name,
            id: context.delivery.id,
            settled: context.delivery.remote_settled,
            failed: state.delivery_failed,
            undeliverable: state.undeliverable_here,
            error,
        });
        // The receiver settles second, so we do it first.
        context.delivery.update(true, name === 'rejected' ? rhea.message.rejected().described() : undefined);
    });
}

container.on('sender_draining', (context) => context.sender.set_drained(true));

// ---- links and connections ----

container.on('connection_open', (context) => {
    const open = context.connection.remote.open;
    say({ event: 'open', hostname: open.hostname, frame: open.max_frame_size, idle: open.idle_time_out });
});

container.on('receiver_open', (context) => {
    context.receiver.set_source(context.receiver.remote.attach.source);
    context.receiver.set_target(context.receiver.remote.attach.target);
});

container.on('sender_open', (context) => {
    const attach = context.sender.remote.attach;
    context.sender.set_source(attach.source);
    context.sender.set_target(attach.target);
    if (attach.source.address === '$cbs') answers = context.sender;
    if (attach.source.address === 'forbidden') {
        context.sender.close({ condition: 'amqp:unauthorized-access', description: 'not for you' });
    }
});

for (const name of ['receiver_close', 'sender_close', 'connection_close', 'disconnected']) {
    container.on(name, () => say({ event: name }));
}
for (const name of ['connection_error', 'session_error', 'protocol_error', 'receiver_error', 'sender_error', 'error']) {
    container.on(name, (context) => say({ event: 'failed', name, what: String(context.message || context) }));
}

const listening = container.listen({ host: '127.0.0.1', port: 0, idle_time_out: 4000, max_frame_size: 4096 });
listening.on('listening', () => say({ event: 'listening', port: listening.address().port }));
process.stdin.on('end', () => process.exit(0)).resume();
